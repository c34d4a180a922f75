"""The live engine: real weights on a real device, run by the same list of parts that is counted.

Needs torch.
"""
