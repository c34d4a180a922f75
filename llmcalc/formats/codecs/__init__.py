"""Arrays through number formats and back, both ways; numpy, imported on use."""
