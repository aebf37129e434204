"""The one address of the server: middleware, routes, limits, replies, metrics, OpenAPI."""
