"""Recordings with captions: sound files, the published layouts, the stored table of a data set, and the leak guard."""
