"""Subscription types: how each one shares out its messages."""
