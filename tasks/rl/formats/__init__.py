"""File formats of networks: the compact format, and the sizes of all formats."""
