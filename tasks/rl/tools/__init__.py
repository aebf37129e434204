"""What serves no table: Minari's files, and masks drawn from a seed in exported files."""
