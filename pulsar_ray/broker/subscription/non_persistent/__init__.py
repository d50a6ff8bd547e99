"""Dispatchers and subscriptions of non-persistent topics."""
