"""``llmcalc speed``."""
