"""Consuming: consumers, readers, table views, their partitions and topics."""
