"""Topics as Spark DataFrames and streams, through RayDP."""
