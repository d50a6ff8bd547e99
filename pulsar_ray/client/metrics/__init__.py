"""Metrics of a process's producers and consumers, where it asks for them."""
