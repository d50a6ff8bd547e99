"""Plan a bulk read: bounds, ranges of files, and the leases that keep them."""
