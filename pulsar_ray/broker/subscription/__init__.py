"""One subscription's dispatcher: its consumers, cursor, turns and requests."""
