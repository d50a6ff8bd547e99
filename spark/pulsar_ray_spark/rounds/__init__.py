"""Rounds of work on topics that a restart goes on with."""
