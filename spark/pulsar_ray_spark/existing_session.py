"""Check that a Spark session can take blocks from this process's Ray."""

from __future__ import annotations

import ray
from pyspark.sql import SparkSession
from raydp.spark.ray_cluster_master import RAYDP_SPARK_MASTER_SUFFIX

from pulsar_ray_spark.errors import SparkNotUsable
from pulsar_ray_spark.running import check_runs


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
