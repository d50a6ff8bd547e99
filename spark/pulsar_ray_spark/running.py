"""Check that a Spark session still runs, and on the Ray of this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from raydp.spark.ray_cluster_master import RAYDP_SPARK_MASTER_SUFFIX

from pulsar_ray_spark.errors import SparkNotUsable, SparkStopped


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


def check_session(spark: object) -> SparkSession:
    """Return the session if RayDP runs it on the Ray of this process.

    Raises SparkStopped if it was stopped, and SparkNotUsable, which says what to do, for any other.
    """
    if not isinstance(spark, SparkSession):
        raise SparkNotUsable(
            f"a {type(spark).__module__}.{type(spark).__name__} cannot read Ray's blocks: give the "
            "SparkSession of pulsar_ray_spark.start() or raydp.init_spark()"
        )
    check_runs(spark)
    master, app_name = str(spark.sparkContext.master), str(spark.sparkContext.appName)
    if not master.startswith("ray://"):
        raise SparkNotUsable(
            f"this Spark session runs on {master}, where executors cannot read Ray's blocks: stop "
            "it and call pulsar_ray_spark.start(), or raydp.init_spark()"
        )
    if not ray.is_initialized() or not _has_master(app_name):
        raise SparkNotUsable(
            f"this process has left the Ray that Spark's application {app_name!r} runs on: stop the "
            "session and start one here"
        )
    return spark


def _has_master(app_name: str) -> bool:
    try:
        ray.get_actor(app_name + RAYDP_SPARK_MASTER_SUFFIX)
    except ValueError:
        return False
    return True
