"""The client: producers, consumers, readers and table views."""
