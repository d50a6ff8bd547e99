"""Topics as folders of parquet files, for Spark's own Structured Streaming."""
