"""``llmcalc tokenize``."""
