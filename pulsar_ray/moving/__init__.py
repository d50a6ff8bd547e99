"""Moves partitions between stores that are both there (ADR 0141)."""
