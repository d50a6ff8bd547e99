"""Nodes that join the cluster, are killed, and come back."""

from __future__ import annotations

import pytest

from tests.nodes.ray_nodes import RayNodes

_SEND = """
import sys, pulsar_ray
with pulsar_ray.Client() as client:
    producer = client.create_producer(sys.argv[1])
    for number in range(int(sys.argv[2])):
        producer.send(f"{number}".encode())
answer(True)
"""
_RECEIVE = """
import sys, pulsar_ray
with pulsar_ray.Client() as client:
    consumer = client.subscribe(sys.argv[1], "s", initial_position=pulsar_ray.InitialPosition.Earliest)
    received = [consumer.receive(30_000) for _ in range(int(sys.argv[2]))]
    answer([int(message.data()) for message in received])
"""


@pytest.mark.parametrize("moves", [False, True], ids=["same address", "another address"])
def test_a_killed_node_comes_back_with_its_partitions(ray_nodes: RayNodes, moves: bool) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "spread", 4)
    ray_nodes.head.ask(_SEND, "spread", "20")
    assert list((worker.disk / "p").iterdir()), "the worker holds some of the partitions"

    worker.kill()
    worker.boot(worker.other_address() if moves else None)
    ray_nodes.start_worker(worker)

    assert sorted(worker.ask(_RECEIVE, "spread", "20")) == list(range(20))
