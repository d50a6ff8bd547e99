"""The Ray actors: thin shells around plain classes."""
