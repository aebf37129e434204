"""How networks are kept in files: the compact format, and what every format takes."""
