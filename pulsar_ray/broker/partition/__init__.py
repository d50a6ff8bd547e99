"""One partition's server: publishing, followers, ranges, and its subscriptions."""
