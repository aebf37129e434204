"""The challenge's submission."""
