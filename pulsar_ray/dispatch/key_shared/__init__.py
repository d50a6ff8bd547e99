"""Key_Shared: slots, hash ranges and rings, draining hashes."""
