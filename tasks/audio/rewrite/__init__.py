"""Captions rewritten: by a language model, by rules, from published files."""
