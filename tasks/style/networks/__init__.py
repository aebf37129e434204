"""Transformer networks and backbones: their layers, their weights, and files of others."""
