"""Producing: routing, batching, the send queue of a partition, receipts."""
