"""The HTTP endpoints, and the deployment that each calls."""
