"""The actor's end of lanes: listening, accepting, reading, bounds."""
