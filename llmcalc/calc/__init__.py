"""One file per question: pure functions of an Anatomy, no input and no output."""
