"""``llmcalc trace``."""
