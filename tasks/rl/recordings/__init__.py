"""Where data come from: files in D4RL's and Minari's formats, and recordings of our own experts."""
