"""Answers as views, and what writes and draws them."""
