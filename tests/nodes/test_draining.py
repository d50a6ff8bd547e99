"""A node that Ray drains, as `ray drain-node` and autoscalers make it, gets nothing new."""

from __future__ import annotations

import pytest

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
_SUBSCRIBE = """
import sys, pulsar_ray
from pulsar_ray.errors import WrongNode
with pulsar_ray.Client() as client:
    consumer = client.subscribe(sys.argv[1], sys.argv[2])
    try:
        consumer.unsubscribe()
    except WrongNode as error:
        answer(type(error).__name__)
"""


@pytest.mark.timeout(400)
def test_new_partitions_go_elsewhere_and_what_runs_goes_on(ray_nodes: RayNodes) -> None:
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
    held = {path.name for path in (worker.disk / "p").iterdir() if path.name.isdigit()}
    assert ray_nodes.head.ask(_USE, "after", "s") == [0, 1, 2, 3]
    assert {path.name for path in (worker.disk / "p").iterdir() if path.name.isdigit()} == held
    # What runs there goes on. What would have to be started there is away: a new subscription's dispatcher.
    assert ray_nodes.head.ask(_USE, "before", "s") == [0, 1]
    assert ray_nodes.head.ask(_SUBSCRIBE, "before", "new") == "WrongNode"
