"""Suspects: messages of a crashed consumer come again singly (ADR 0007).

So a second crash has a culprit.
"""
