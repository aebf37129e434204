"""What is served, and how: models chosen, addresses, `retable serve`."""
