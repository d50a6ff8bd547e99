"""Keeping the latest message of each key of a log."""
