"""A generated world of sounds and captions."""
