"""Partitions of non-persistent topics, and the dispatchers that follow them."""
