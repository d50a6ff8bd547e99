"""One partition's server: publishing, followers, ranges, and what it tells of its subscriptions."""
