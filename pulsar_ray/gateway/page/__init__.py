"""The page for people with a browser: topics, messages, nodes, and what may be done with them."""
