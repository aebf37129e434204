"""Sources of data: files in D4RL's format, and recordings of our own experts."""
