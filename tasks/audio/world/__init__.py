"""A generated world of sounds and captions, and scenes composed of real recordings."""
