"""Videos: their frames, several at once, and what keeps them steady."""
