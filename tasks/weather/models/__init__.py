"""The networks: the paper's, a context network of ours, and what any network should beat."""
