"""Whether a Spark session still runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pulsar_ray_spark.errors import SparkStopped


def runs(spark: SparkSession) -> bool:
    """Whether nobody has stopped the session or killed its JVM."""
    active: object = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask
    return spark.sparkContext is active and _answers(spark.sparkContext)


def _answers(context: Any) -> bool:
    try:
        return not context._jsc.sc().isStopped()  # noqa: SLF001
    except (AttributeError, Py4JError, OSError):  # there is no JVM any more
        return False


def check_runs(spark: SparkSession) -> None:
    """Raise SparkStopped if the session was stopped."""
    if not runs(spark):
        raise SparkStopped(
            "this Spark session was stopped: start another with pulsar_ray_spark.start(), and read again"
        )


@contextmanager
def naming_a_stop(spark: SparkSession) -> Iterator[None]:
    """Raise SparkStopped in place of errors that come of the session's being stopped meanwhile."""
    try:
        yield
    except Exception as error:
        # Whatever pyspark or py4j make of a gateway that is gone.
        try:
            check_runs(spark)
        except SparkStopped as stopped:
            raise stopped from error
        raise
