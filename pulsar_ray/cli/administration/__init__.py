"""The commands that look at and change what a broker holds."""
