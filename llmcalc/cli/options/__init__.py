"""The options that commands share: one name for one thing."""
