"""The topic in Spark, aggregated by module."""

from __future__ import annotations

import time

from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from pulsar_ray_spark.demo.text import Tally
from pulsar_ray_spark.handover import releasing
from pulsar_ray_spark.reading import read
from pulsar_ray_spark.session import start, stop

_FOR_A_SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half of what these JVMs would do in their minute is compile."""
_JAVA_OPTION_KEYS = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.ray.raydp_app_master.extraJavaOptions",
)


class SparkCount:
    """Starts Spark on this Ray cluster, reads the whole topic and tallies it by key."""

    def __init__(self) -> None:
        started = time.perf_counter()
        self._spark = start(
            "pulsar-ray demo",
            num_executors=1,
            executor_cores=2,
            executor_memory="1g",
            conf={
                **dict.fromkeys(_JAVA_OPTION_KEYS, _FOR_A_SHORT_LIFE),
                "spark.sql.shuffle.partitions": "2",
                "spark.ui.enabled": "false",
                # Leaves Ray's CPUs to whoever wants them; two threads run all the same.
                "spark.ray.raydp_spark_executor.actor.resource.cpu": "1",
            },
        )
        self.start_seconds = time.perf_counter() - started
        self.seconds = 0.0

    def tallies(self, topic: str) -> dict[str, Tally]:
        """Count lines and sum their CRCs by key in Spark.

        Spark knows no order of lines, so `text_crc` stays 0.
        """
        started = time.perf_counter()
        with releasing(read(self._spark, topic)) as messages:
            rows = (
                messages.groupBy("key")
                .agg(F.count(F.lit(1)).alias("lines"), F.sum(F.crc32("value")).alias("crcs"))
                .collect()
            )
        self.seconds = time.perf_counter() - started
        return {row.key: Tally(row.lines, 0, row.crcs) for row in rows}

    def stop(self) -> None:
        """End Spark and its JVMs."""
        stop()
