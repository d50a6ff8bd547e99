"""Groups that measure the broker itself: starts, memory, recovery, idleness."""
