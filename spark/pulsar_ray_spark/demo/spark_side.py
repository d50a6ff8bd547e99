"""The topic in Spark, aggregated by module."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from pulsar_ray_spark.demo.text import Tally
from pulsar_ray_spark.handover import releasing
from pulsar_ray_spark.reading import read
from pulsar_ray_spark.session import start, stop
from pulsar_ray_spark.streaming.stream_reader import read_stream
from pulsar_ray_spark.writing import write

_QUERY = "demo"
_BATCH_LINES = 400_000

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
        self.stream_seconds = 0.0

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

    def stream_back(self, topic: str, counts: str) -> int:
        """Stream the whole topic, and write each batch's lines by module back to another.

        Returns the number of batches; every line is in one of them. Raises QueryFailed.
        """
        started = time.perf_counter()

        def write_counts(lines: DataFrame, batch_id: int) -> None:
            by_module = lines.groupBy("key").agg(F.count(F.lit(1)).cast("string").alias("value"))
            # Under its name and id a batch is stored once, should it be run again.
            write(by_module, counts, name=_QUERY, batch_id=batch_id)

        query = (
            read_stream(
                self._spark,
                topic,
                name=_QUERY,
                start="earliest",
                columns=["key"],
                max_messages_per_trigger=_BATCH_LINES,
            )
            .foreach_batch(write_counts)
            .trigger(available_now=True)
            .start()
        )
        query.await_termination()
        self.stream_seconds = time.perf_counter() - started
        return sum(1 for batch in query.recent_progress if batch["numInputRows"])

    def stop(self) -> None:
        """End Spark and its JVMs."""
        stop()
