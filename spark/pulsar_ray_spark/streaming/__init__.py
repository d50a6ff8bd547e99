"""Streams of topics as micro-batches of DataFrames."""
