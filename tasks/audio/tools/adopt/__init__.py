"""Pairs of encoders that others trained, read from their published files."""
