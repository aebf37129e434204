"""What becomes of a run: submissions, netCDF, verification; and weights of others as runs."""
