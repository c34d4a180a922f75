"""What families share: frames, towers, scans, and how a config says that a model is run."""
