"""Pruned networks computed without what was pruned: acting and training."""
