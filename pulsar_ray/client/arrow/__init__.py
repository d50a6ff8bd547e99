"""Received messages as Arrow tables."""
