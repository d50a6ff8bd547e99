"""A producer's blocks: gathering messages, encoding them, waiting for receipts."""
