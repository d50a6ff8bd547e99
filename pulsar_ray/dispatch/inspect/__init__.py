"""Looking into a dispatcher: why it stands still, keys, peeking."""
