"""Rounds of several nodes that ship into a shared directory, and are lost with their disks."""
