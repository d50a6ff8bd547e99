"""The tracker of delayed messages, and its dispatcher's side."""
