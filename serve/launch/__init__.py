"""What is served, and how: models chosen, addresses, `retable serve` and its server on Ray."""
