"""Tools that no table needs: search of one's own recordings, models of others, the challenge's submission files."""
