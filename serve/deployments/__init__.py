"""One Ray Serve deployment a task, and what they share: model caches, videos as jobs, child processes."""
