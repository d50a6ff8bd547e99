"""Values that messages, positions and topics are made of: frozen, no I/O, no clock."""
