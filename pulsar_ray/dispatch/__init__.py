"""Who gets which entry: pure decisions, events in and actions out."""
