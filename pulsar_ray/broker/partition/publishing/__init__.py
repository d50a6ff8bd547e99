"""Publishing at a partition: its producers, their blocks, and reasons to take none."""
