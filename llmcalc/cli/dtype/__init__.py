"""``llmcalc dtype``."""
