"""Pictures of answers: what they show, drawn as text, into a file, or exported with the whole output."""
