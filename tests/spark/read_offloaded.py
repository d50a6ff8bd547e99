"""Reads a topic that is only in the object store: by a consumer, by Ray Data and by Spark.

Run with a data directory, the object store's address, and the number of megabytes. It prints what it found
as JSON.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
from pyspark.sql import functions

import pulsar_ray
import pulsar_ray.data
import pulsar_ray_spark
from pulsar_ray.launch.start import stop_broker
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark import session

VALUE_BYTES = 16 << 10
WAIT_MS, WAIT_S = 120_000, 600.0
CACHE_BYTES = 64 << 20
TOPIC = "orders"


def value(number: int) -> bytes:
    """Return the payload of one message, which no other has."""
    return b"%010d" % number + np.random.default_rng(number).bytes(VALUE_BYTES - 10)


def _publish(client: pulsar_ray.Client, count: int) -> int:
    """Publish in order, and return the sum of all checksums."""
    producer, total = client.create_producer(TOPIC, block_if_queue_full=True), 0
    for number in range(count):
        data = value(number)
        total += zlib.crc32(data)
        producer.send_async(data, lambda _result, _id: None)
    producer.flush()
    producer.close()
    return total


def _seen(rows: Iterable[tuple[int, int]], count: int) -> dict[str, Any]:
    """Sum numbers and checksums up, as they came."""
    numbers, total = [], 0
    for number, checksum in rows:
        numbers.append(number)
        total += checksum
    return {"isInOrder": numbers == list(range(count)), "messages": len(numbers), "checksum": total}


def _consumed(client: pulsar_ray.Client, count: int) -> Iterable[tuple[int, int]]:
    consumer = client.subscribe(TOPIC, "cold")
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        yield int(message.data()[:10]), zlib.crc32(message.data())
    consumer.close()


def _by_ray_data() -> Iterable[tuple[int, int]]:
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    for batch in pulsar_ray.data.read(TOPIC, columns=["value"], num_cpus=0.5).iter_batches(batch_size=None):
        for data in batch["value"]:
            yield int(data[:10]), zlib.crc32(data)


def _by_spark() -> Iterable[tuple[int, int]]:
    spark = session.start("offloaded", executor_memory="1g", conf={"spark.ui.enabled": "false"})
    frame = pulsar_ray_spark.read(spark, TOPIC, columns=["value"])
    number = functions.expr("cast(cast(substring(value, 1, 10) as string) as long)")
    for row in frame.select(number.alias("number"), functions.crc32("value").alias("checksum")).collect():
        yield row.number, row.checksum
    session.stop()


def main(data_dir: Path, url: str, megabytes: int) -> dict[str, Any]:
    """Publish, leave the topic to the object store, and read it three times."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    count = (megabytes << 20) // VALUE_BYTES
    settings: dict[str, Any] = {
        "segment_size_bytes": max(megabytes // 16, 4) << 20,
        "index_checkpoint_bytes": 1 << 20,
        "offload_cache_bytes": CACHE_BYTES,
    }
    with pulsar_ray.Client(data_dir=str(data_dir), remote_url=url, **settings) as client:
        client.subscribe(TOPIC, "cold").close()
        checksum = _publish(client, count)
        with pulsar_ray.Admin() as admin:
            before = sum(path.stat().st_size for path in data_dir.glob("p/*/*.seg"))
            admin.topics.offload(TOPIC)
            wait_until(lambda: admin.topics.offload_status(TOPIC)["status"] != "RUNNING", WAIT_S)
            status = admin.topics.offload_status(TOPIC)
            after = sum(path.stat().st_size for path in data_dir.glob("p/*/*.seg"))
            seen = {
                "consumer": _seen(_consumed(client, count), count),
                "ray data": _seen(_by_ray_data(), count),
                "spark": _seen(_by_spark(), count),
            }
            [store] = admin.stores.remote()
    stop_broker()
    return {
        "messages": count,
        "checksum": checksum,
        "seen": seen,
        "status": status,
        "bytesBefore": before,
        "bytesAfter": after,
        "cacheBytes": store.cache_bytes,
        "cacheLimit": settings["offload_cache_bytes"],
        "cacheMisses": store.cache_misses,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))), flush=True)
