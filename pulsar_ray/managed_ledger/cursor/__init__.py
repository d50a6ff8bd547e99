"""A subscription's cursor and its records."""
