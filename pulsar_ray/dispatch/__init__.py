"""Deciding who gets which entry: pure, events in and actions out."""
