"""What number formats do to values: arrays rounded, quantised and read back.

numpy, imported on use.
"""
