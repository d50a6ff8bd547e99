"""A node that Ray drains, as `ray drain-node` and autoscalers make it, gets nothing new and becomes empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.log.move_note import DEPARTING, read_move_note
from tests.nodes.ray_nodes import PORT, RayNodes

_NODE_ID = """
import ray
ray.init("auto", log_to_driver=False, logging_level="ERROR")
answer(ray.get_runtime_context().get_node_id())
"""
_USE = """
import sys, pulsar_ray
with pulsar_ray.Client() as client:
    consumer = client.subscribe(sys.argv[1], sys.argv[2])
    producer = client.create_producer(sys.argv[1], batching_enabled=False)
    used = {producer.send(b"x").partition() for _ in range(8)}
    for _ in range(8):
        consumer.acknowledge(consumer.receive(30_000))
    answer(sorted(used))
"""
_DRAINED = """
import time, pulsar_ray
with pulsar_ray.Admin() as admin:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if any(node.state == "drained" for node in admin.brokers.nodes()):
            break
        time.sleep(0.2)
    answer([node.state for node in admin.brokers.nodes() if node.state != "serving"] == ["drained"])
"""


def held_for_good(path: Path) -> bool:
    """Whether a directory is that of a partition, and not kept for a moment behind its move."""
    return path.name.isdigit() and read_move_note(path).state != DEPARTING


@pytest.mark.timeout(400)
def test_new_partitions_go_elsewhere_and_all_others_move_there(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "before", 2)
    assert ray_nodes.head.ask(_USE, "before", "s") == [0, 1]
    node_id = worker.ask(_NODE_ID)

    worker.run(
        *("ray", "drain-node", f"--address={ray_nodes.head.address}:{PORT}", f"--node-id={node_id}"),
        *(
            "--reason=DRAIN_NODE_REASON_PREEMPTION",
            "--reason-message=test",
            "--deadline-remaining-seconds=300",
        ),
    )
    ray_nodes.admin("topics.create_partitioned_topic", "after", 4)
    assert ray_nodes.head.ask(_USE, "after", "s") == [0, 1, 2, 3]
    assert ray_nodes.head.ask(_DRAINED)
    assert [path.name for path in (worker.disk / "p").iterdir() if held_for_good(path)] == []
    # All of it goes on at the head, a new subscription too.
    assert ray_nodes.head.ask(_USE, "before", "s") == [0, 1]
    assert ray_nodes.head.ask(_USE, "before", "new") == [0, 1]
