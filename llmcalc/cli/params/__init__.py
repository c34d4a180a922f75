"""``llmcalc params``."""
