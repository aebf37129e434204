"""Recordings with captions from the published sets and one's own files: read, checked, kept free of leaks."""
