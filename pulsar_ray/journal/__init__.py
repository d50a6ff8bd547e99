"""Stores ship their logs into an object store (ADR 0124)."""
