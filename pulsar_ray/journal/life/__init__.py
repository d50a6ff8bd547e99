"""Parts of one life of a store, each with what it alone knows."""
