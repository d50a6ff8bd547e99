"""The consumers that are connected to a subscription, and their requests."""
