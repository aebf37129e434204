"""One Ray Serve deployment a task, and what they share: their base, videos as jobs, child processes."""
