"""Groups that measure what Spark reads and writes."""
