"""The Spark session of a command that runs a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pulsar_ray_spark.redirection import redirected
from pulsar_ray_spark.session import start, stop


@contextmanager
def session_of_program(
    app_name: str,
    *,
    num_executors: int | None,
    executor_cores: int | None,
    executor_memory: str | None,
    conf: Mapping[str, str],
    service_url: str,
    data_dir: str | None,
) -> Iterator[SparkSession]:
    """Start Spark for a program, and stop it when the program has ended.

    Standard output is the program's alone: Spark's JVM writes to standard error. Raises as `start` does.
    """
    try:
        with redirected({1: 2}):
            spark = start(
                app_name,
                num_executors=num_executors,
                executor_cores=executor_cores,
                executor_memory=executor_memory,
                conf=conf,
                service_url=service_url,
                data_dir=data_dir,
            )
        yield spark
    finally:
        stop()
