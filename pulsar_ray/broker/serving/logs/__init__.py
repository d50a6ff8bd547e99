"""The log of broker processes: lines, their limits, a node's file."""
