"""``llmcalc kvcache``."""
