"""The actors of a cluster's stores, and the partitions that move between them."""
