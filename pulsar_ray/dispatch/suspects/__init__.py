"""Suspects: messages that a crashed consumer had in hand come again in halves (ADR 0033).

So the one that is to blame is found in few crashes, and nobody else is blamed.
"""
