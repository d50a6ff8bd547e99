"""What a client and an actor say to each other once attached: pure, both ends."""
