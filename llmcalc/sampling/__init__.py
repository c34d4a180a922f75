"""From logits to the next token: every stage a pure function, every engine an order of them.

The only use of numpy.
"""
