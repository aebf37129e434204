"""A data set made ready: generated, imported from the published sets or one's own files, and checked."""
