"""Topics as Ray Data sources."""
