"""What serves no table: Minari's files, masks drawn from a seed in exported files, and the training of the experts."""
