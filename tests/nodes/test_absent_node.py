"""A node that is away: its partitions wait, everything else is served."""

from __future__ import annotations

import time

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import RayNodes

DEADLINE_S = 90.0
_USE = """
import sys, pulsar_ray
from pulsar_ray.errors import Timeout, WrongNode
topic, subscription, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with pulsar_ray.Client() as client:
    consumer = client.subscribe(topic, subscription)
    producer = client.create_producer(topic, batching_enabled=False)
    used = {producer.send(b"%d" % number).partition() for number in range(count)}
    received = sorted(int(consumer.receive(30_000).data()) for _ in range(count))
    refusals = []
    for number in range(20):
        try:
            producer.send(b"keyed", partition_key=str(number))
        except WrongNode as error:
            refusals.append(str(error))
    answer([sorted(used), received, refusals])
"""


@pytest.mark.timeout(400)
def test_what_is_up_is_served_while_a_node_is_away(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "t", 4)
    assert len(ray_nodes.head.ask(_USE, "t", "first", "8")[0]) == 4

    worker.kill()

    def away() -> list[str]:
        partitions = ray_nodes.admin("topics.stats", "t")["partitions"]
        return [name for name, stats in partitions.items() if stats.get("away")]

    wait_until(lambda: len(away()) == 2, DEADLINE_S, "the absence")
    began = time.monotonic()
    stores = ray_nodes.admin("stats")["stores"]
    print(f"stats took {time.monotonic() - began:.1f} s, with the start of a process")
    assert sorted("away" in store for store in stores) == [False, True]
    used, received, refusals = ray_nodes.head.ask(_USE, "t", "second", "8")
    assert len(used) == 2
    assert received == list(range(8))
    assert refusals
    assert all("lives in store" in refusal for refusal in refusals)
    unloaded = ray_nodes.head.run("pulsar-ray", "topics", "unload", "t", check=False)
    assert unloaded.returncode == 1
    assert "lives in store" in unloaded.stdout

    worker.boot(worker.other_address())
    ray_nodes.start_worker(worker)
    assert not away()
    used, received, refusals = ray_nodes.head.ask(_USE, "t", "third", "8")
    assert len(used) == 4
    assert received == list(range(8))
    assert not refusals
