"""Pictures: read, written, checked, generated, and those that come along."""
