"""Pruning: the scores, the masks, and what remains of the networks."""
