"""``llmcalc sample``."""
