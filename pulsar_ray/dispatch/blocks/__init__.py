"""The blocks that a dispatcher has read: their places, waiting rows and deliveries."""
