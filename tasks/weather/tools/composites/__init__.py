"""Real rain composites of several services, cut into regions of the competition's layout."""
