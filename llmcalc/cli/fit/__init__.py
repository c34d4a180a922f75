"""``llmcalc fit``."""
