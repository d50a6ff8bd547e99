"""A dispatcher's view of its partition's log, and reading from it."""
