"""Measure reading what is only in the object store, against that store's own GETs in the same run.

The object store is an S3 server of this machine, as in the group `remote`.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow as pa

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row
from benchmarks.running.remote import URL, s3_server, until_ready
from pulsar_ray.journal.objects import unpack_piece
from pulsar_ray.journal.storage.bucket import open_object_store

VALUE_BYTES, ROWS = 8_000, 1_000
LEAST_OF_GETS = 0.7
MOST_OVER_GET_MS = 250.0
WAIT_MS = 60_000
ROUNDS = 5
SETTINGS: dict[str, Any] = {
    "segment_size_bytes": 32 << 20,
    "index_checkpoint_bytes": 4 << 20,
    # Much less than the topic has: nothing of it is there when it is read again.
    "offload_cache_bytes": 64 << 20,
}


def run(env: Environment) -> list[Row]:
    """Publish, offload, and read by a consumer and by GETs, by turns."""
    with s3_server(), env.broker(remote_url=URL, **SETTINGS) as broker, pulsar_ray.Admin() as admin:
        until_ready(admin)
        topic, rows = _published(env, broker)
        here = _consumed(broker, topic, "here", rows)[1]
        _offload(admin, topic)
        turns = [(_gets(), _consumed(broker, topic, f"cold-{turn}", rows)) for turn in range(ROUNDS)]
    gets, cold = (p50([turn[of][1] for turn in turns]) for of in range(2))
    get_ms, first_ms = (p50([turn[of][0] for turn in turns]) for of in range(2))
    # Of both in the same turn: the machine is not the same in all of them.
    ratio = p50([cold / gets for (_, gets), (_, cold) in turns])
    over = p50([first - get for (get, _), (first, _) in turns])
    what = "read in order, of GETs one after the other"
    note = f"{_mb(here)} from the disk before"
    what_first = "first table, over one GET (ms)"
    return [
        Row(what, _mb(cold), _mb(gets), ratio, LEAST_OF_GETS, note=note),
        Row(what_first, f"{first_ms:.0f} ms", f"{get_ms:.0f} ms", over, MOST_OVER_GET_MS, at_most=True),
    ]


def _mb(bytes_a_second: float) -> str:
    return f"{bytes_a_second / 1e6:,.0f} MB/s"


def _published(env: Environment, broker: Broker) -> tuple[str, int]:
    topic: str = broker.topic()
    for name in ("here", *(f"cold-{turn}" for turn in range(ROUNDS))):
        broker.client.subscribe(topic, name).close()
    table = pa.table({"value": pa.array([os.urandom(VALUE_BYTES) for _ in range(ROWS)], pa.binary())})
    producer = broker.client.create_producer(topic, block_if_queue_full=True)
    tables = env.count(64, 16)
    for _ in range(tables):
        producer.send_arrow(table)
    producer.close()
    return topic, tables * ROWS


def _consumed(broker: Broker, topic: str, name: str, rows: int) -> tuple[float, float]:
    """Return after how many milliseconds the first table came, and bytes a second."""
    consumer = broker.client.subscribe(topic, name)
    begin, first, got = time.perf_counter(), 0.0, 0
    while got < rows:
        table = consumer.receive_arrow(max_messages=10_000, timeout_millis=WAIT_MS)
        first = first or time.perf_counter() - begin
        got += table.num_rows
        consumer.acknowledge_arrow(table)
    took = time.perf_counter() - begin
    consumer.close()
    return first * 1000, rows * VALUE_BYTES / took


def _offload(admin: pulsar_ray.Admin, topic: str) -> None:
    admin.topics.offload(topic)
    deadline = time.monotonic() + 120
    while (status := admin.topics.offload_status(topic))["status"] != "SUCCESS":
        if status["status"] == "ERROR" or time.monotonic() > deadline:
            raise TimeoutError(f"the topic is not offloaded: {status}")
        time.sleep(0.1)


def _gets() -> tuple[float, float]:
    """Return the milliseconds of one GET of a piece, and bytes a second one after the other."""
    store = open_object_store(URL)
    names = [name for name in store.list("segments/") if ".seg/" in name]
    begin, size, first = time.perf_counter(), 0, 0.0
    for name in names:
        size += len(unpack_piece(name, store.get(name) or b""))
        first = first or time.perf_counter() - begin
    return first * 1000, size / (time.perf_counter() - begin)
