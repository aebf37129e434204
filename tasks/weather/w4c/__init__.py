"""The competition's files: read, checked, converted, and generated in the same layout."""
