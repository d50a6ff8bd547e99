"""Shows topics, messages and nodes in a browser, and changes them on confirmation."""
