"""Engines: what each allocates, and by which rules."""
