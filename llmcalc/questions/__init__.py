"""One file per question: pure functions of a model's parts, no input and no output."""
