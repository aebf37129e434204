"""Launch: the choice of models, addresses, `retable serve` and its server on Ray."""
