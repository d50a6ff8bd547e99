"""Groups that measure how messages are sent."""
