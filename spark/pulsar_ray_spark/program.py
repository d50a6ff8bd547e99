"""The Spark session of a command that runs a program, and its output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pulsar_ray_spark.session import start, stop


@contextmanager
def redirected(targets: Mapping[int, int]) -> Iterator[None]:
    """Let descriptors of this process lead where others do.

    `targets` maps each descriptor to the one to write to. Children that are started meanwhile inherit that,
    and keep it.
    """
    _flush()
    kept = {number: os.dup(number) for number in targets}
    try:
        for number, target in targets.items():
            os.dup2(target, number)
        yield
    finally:
        _flush()
        for number, original in kept.items():
            os.dup2(original, number)
            os.close(original)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


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
