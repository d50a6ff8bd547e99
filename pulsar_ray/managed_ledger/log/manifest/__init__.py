"""A partition's manifest: contents, records, reading them back."""
