"""Groups that measure how messages are received."""
