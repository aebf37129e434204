"""Exports of a run: submissions, netCDF, pages of verification; and weights of others as runs."""
