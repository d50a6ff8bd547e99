"""Retry letter and dead letter topics: copies of messages that failed."""
