"""Commands that show how a broker is, and how far a command has got."""
