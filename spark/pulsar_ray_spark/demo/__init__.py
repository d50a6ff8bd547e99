"""`pulsar-ray demo`: real text through partitions, consumers in actors and Spark, all accounted for."""

from pulsar_ray_spark.demo.job import Demo, DemoFailed
from pulsar_ray_spark.demo.text import own_files, standard_library

__all__ = ["Demo", "DemoFailed", "own_files", "standard_library"]
