"""Text to ids and back, under any tokenizer: each library is imported where it is used, and nowhere else."""
