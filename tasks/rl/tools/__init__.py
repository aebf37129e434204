"""Tools that no table needs: Minari's files, and masks drawn from a seed in exported files."""
