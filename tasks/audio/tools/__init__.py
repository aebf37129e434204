"""What serves no table: searching one's own recordings, models of others, the challenge's submission files."""
