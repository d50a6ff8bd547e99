"""The index of a subscription's delayed messages, on disk in sorted runs."""
