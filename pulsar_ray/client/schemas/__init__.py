"""Schemas of topics in clients: which version is written, and reading by the writer's."""
