"""Publishing lists and tables at once."""
