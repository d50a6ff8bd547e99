"""A driver with Spark that writes a batch, while a test kills what it needs.

python -m tests.spark.write_driver ADDRESS TOPIC MARK EXECUTORS

The file MARK is there once an executor computes rows. Each line of output behind RESULT is a write of the
batch: an error of ours, or how many messages it had and how many of them an earlier one had stored. The last
write is one of a batch that was written before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import ray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from pulsar_ray.errors import PulsarException
from pulsar_ray.transport.actor_names import NAMESPACE
from pulsar_ray_spark import session, write

ROWS = 40_000
TASKS = 16
ATTEMPTS = 4
RESULT = "result: "
CONF = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}


def slow_rows(spark: SparkSession, mark: str) -> DataFrame:
    """Rows that take some seconds, so that a kill meets executors at work."""

    def value(number: int) -> str:
        if number % 100 == 0:
            Path(mark).touch()
            time.sleep(0.01)
        return str(number)

    text = F.udf(value)
    return spark.range(0, ROWS, numPartitions=8).select(
        text("id").alias("value"), F.concat(F.lit("k"), F.col("id") % 50).alias("key")
    )


def main() -> None:
    """Write the batch until it is written, and then once more."""
    address, topic, mark, executors = sys.argv[1:]
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
    spark = session.start(
        "driver", num_executors=int(executors), executor_cores=1, executor_memory="512m", conf=CONF
    )
    frame = slow_rows(spark, mark)
    for _ in range(ATTEMPTS):
        try:
            written = write(frame, topic, name="q", batch_id=0, tasks=TASKS)
        except PulsarException as error:
            print(RESULT, error, sep="", flush=True)
            continue
        print(f"{RESULT}written {written.messages} {written.repeated}", flush=True)
        if written.stored == 0:
            break
    session.stop()


if __name__ == "__main__":
    main()
