"""What turns recordings and captions into vectors, and the weights that others trained for it."""
