"""A Ray is started, joined, and left once its use is over."""
