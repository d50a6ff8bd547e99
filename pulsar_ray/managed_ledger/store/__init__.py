"""A node's data directory."""
