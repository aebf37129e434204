"""Encoders of recordings and captions, and weights that others trained for them."""
