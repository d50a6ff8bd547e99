"""A node that is gone for good: others take over what it had shipped, and nothing confirmed is missing."""

from __future__ import annotations

import json

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import READ_ALL
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, SHARED, Node, World

DEADLINE_S = 120.0
REMOTE = f"file://{SHARED}/bucket"
_SEND = """
import sys, pulsar_ray
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    consumer = client.subscribe("t", "s", consumer_type=pulsar_ray.ConsumerType.Shared)
    producer = client.create_producer("t", batching_enabled=False)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    stored = {}
    for number in range(first, first + count):
        stored[str(producer.send(str(number).encode(), partition_key=str(number)))] = number
    consumer.close()
    answer(stored)
"""
_CONSUME = """
import sys, pulsar_ray
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    consumer = client.subscribe("t", "s", consumer_type=pulsar_ray.ConsumerType.Shared)
    got = {}
    while len(got) < int(sys.argv[1]):
        message = consumer.receive(60_000)
        got[str(message.message_id())] = int(message.data())
        consumer.acknowledge(message)
    consumer.close()
    answer(got)
"""


@pytest.mark.timeout(900)
def test_partitions_of_a_node_that_is_gone_go_on_elsewhere_with_all_that_was_confirmed(world: World) -> None:
    nodes = RayNodes(world)
    head = nodes.head
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    synchronous = ("env", "PULSAR_RAY_REMOTE_DURABILITY=sync")
    head.run(*synchronous, "pulsar-ray", "start", "--data-dir", DATA_DIR, "--remote", REMOTE)
    worker = nodes.add_worker()
    nodes.admin("topics.create_partitioned_topic", "t", 4)

    def ready() -> bool:
        said = head.run("pulsar-ray", "remote", "status", "--json", check=False).stdout
        states = json.loads(said[said.index("[") : said.rindex("]") + 1])
        return len(states) == 2 and all(state["is_ready"] for state in states)

    wait_until(ready, DEADLINE_S, "both stores ship")
    before = head.ask(_SEND, "0", "80")
    listed = json.loads(head.run("pulsar-ray", "nodes", "--json").stdout)
    (lost,) = [node["store_id"] for node in listed if node["host"] == worker.name]
    worker.kill()
    wait_until(lambda: "away" in _run(head, "nodes"), DEADLINE_S, "the broker sees that it is gone")
    assert "come back from the object store" in _run(head, "stores", "forget", lost[:8])
    head.run("pulsar-ray", "stores", "forget", lost[:8], "--accept-loss")
    behind = head.ask(_SEND, "80", "40")
    assert head.ask(_CONSUME, "120") == {**before, **behind}
    assert set(head.ask(READ_ALL)) == {str(number) for number in range(120)}
    health = head.run("pulsar-ray", "health", check=False)
    assert health.returncode == 0, health.stdout


def _run(node: Node, *command: str) -> str:
    """Run a command that may end with any code, and return all that it said."""
    return node.run("pulsar-ray", *command, check=False).stdout
