"""Number formats: one record for each format, block and scheme, and what a model takes in it."""
