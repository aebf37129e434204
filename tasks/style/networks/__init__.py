"""Transformer networks and backbones: their layers, their weights, files of others, and pictures in tiles."""
