"""Arguments of clients, producers and consumers: declared, checked, documented."""
