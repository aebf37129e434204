"""Styles put on pictures: by a network, by optimisation, in tiles and regions; and how good they are."""
