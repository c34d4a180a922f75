"""Small models that are worked by hand: every matrix is kept, so that it can be printed.

numpy, imported on use.
"""
