"""Where data come from: files in D4RL's format, and recordings of our own experts."""
