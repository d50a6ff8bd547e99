"""The queue of one producer for one partition, and its parts."""
