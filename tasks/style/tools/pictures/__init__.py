"""Styles put on pictures: many at once, in regions, with knobs; and how good they are."""
