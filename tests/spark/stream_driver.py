"""A driver with Spark and a stream, which a test kills.

python -m tests.spark.stream_driver ADDRESS TOPIC SINK
"""

from __future__ import annotations

import sys
from pathlib import Path

import ray

from pulsar_ray.transport.actor_names import NAMESPACE
from pulsar_ray_spark import read_stream, session
from tests.spark.stream_sink import Sink

QUERY = "driven"


def main() -> None:
    """Run the query until it fails; a test ends the process."""
    address, topic, directory = sys.argv[1:]
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
    spark = session.start("driver", executor_memory="512m", conf={"spark.ui.enabled": "false"})
    stream = read_stream(
        spark, topic, name=QUERY, start="earliest", columns=["value"], max_messages_per_trigger=500
    )
    query = stream.foreach_batch(Sink(Path(directory)).take).start()
    query.await_termination()


if __name__ == "__main__":
    main()
