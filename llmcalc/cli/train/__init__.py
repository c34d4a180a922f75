"""``llmcalc train``."""
