"""A node that is gone for good: others take over what it had shipped, and nothing confirmed is missing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import READ_ALL, Flow
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, SHARED, Node, World, json_in

DEADLINE_S = 120.0
LOSS_S = 10
OFF = "public/off/t"
REMOTE = f"file://{SHARED}/bucket"
_SEND = """
import sys, pulsar_ray
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    consumer = client.subscribe(sys.argv[1], "s", consumer_type=pulsar_ray.ConsumerType.Shared)
    producer = client.create_producer(sys.argv[1], batching_enabled=False)
    first, count = int(sys.argv[2]), int(sys.argv[3])
    stored = {}
    for number in range(first, first + count):
        stored[str(producer.send(str(number).encode(), partition_key=str(number)))] = number
    consumer.close()
    answer(stored)
"""
_CONSUME = """
import sys, pulsar_ray
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    consumer = client.subscribe(sys.argv[1], "s", consumer_type=pulsar_ray.ConsumerType.Shared)
    got = {}
    while len(got) < int(sys.argv[2]):
        message = consumer.receive(60_000)
        got[str(message.message_id())] = int(message.data())
        consumer.acknowledge(message)
    consumer.close()
    answer(got)
"""


@pytest.mark.timeout(900)
def test_partitions_of_a_node_that_is_gone_go_on_elsewhere_with_all_that_was_confirmed(world: World) -> None:
    nodes, worker = _two_nodes(world, node_loss_seconds=0)
    head = nodes.head
    nodes.retain_all()
    nodes.admin("topics.create_partitioned_topic", "t", 4)
    before = head.ask(_SEND, "t", "0", "80")
    lost = _store_of(head, worker)
    worker.kill()
    wait_until(lambda: "away" in _run(head, "nodes"), DEADLINE_S, "the broker sees that it is gone")
    assert "come back from the object store" in _run(head, "stores", "forget", lost[:8])
    head.run("pulsar-ray", "stores", "forget", lost[:8], "--accept-loss")
    behind = head.ask(_SEND, "t", "80", "40")
    assert head.ask(_CONSUME, "t", "120") == {**before, **behind}
    assert set(head.ask(READ_ALL)) == {str(number) for number in range(120)}
    health = head.run("pulsar-ray", "health", check=False)
    assert health.returncode == 0, health.stdout


@pytest.mark.timeout(900)
def test_a_node_is_taken_over_by_itself_under_load_and_comes_back_as_a_new_one(world: World) -> None:
    nodes, worker = _two_nodes(world, node_loss_seconds=LOSS_S)
    head, flow = nodes.head, Flow(world)
    nodes.retain_all()
    nodes.admin("namespaces.create", "public/off")
    nodes.admin("namespaces.policies.set", "public/off", "remote_durability", "off")
    for topic in ("t", "ids", OFF):
        nodes.admin("topics.create_partitioned_topic", topic, 4)
    before, unshipped = (head.ask(_SEND, topic, "0", "40") for topic in ("ids", OFF))
    lost = _store_of(head, worker)
    with flow.programs(head):
        worker.kill()
        died = time.monotonic()
        wait_until(lambda: "taken over by other stores" in _why_away(head, lost), DEADLINE_S, "nodes says it")
        wait_until(lambda: "never shipped" in _why_away(head, lost), DEADLINE_S, "all of it is taken over")
        print(f"taken over {time.monotonic() - died:.1f} s after the death, {LOSS_S} s of that were to wait")
        flow.check("the takeover")
    assert set(flow.told("confirmed")) <= set(head.ask(READ_ALL))
    behind = head.ask(_SEND, "ids", "40", "40")
    assert head.ask(_CONSUME, "ids", "80") == {**before, **behind}
    worker.boot()
    start_ray(worker, f"--address={head.address}:{PORT}")
    wait_until(lambda: lost not in _stores(head) and _ships(head) == 2, DEADLINE_S, "a new store")
    assert head.ask(_CONSUME, OFF, "40") == unshipped
    assert f"ended-{lost}" in worker.run("ls", DATA_DIR).stdout
    assert "all is whole" in worker.run("pulsar-ray", "verify", f"{DATA_DIR}/ended-{lost}").stdout
    wait_until(lambda: head.run("pulsar-ray", "health", check=False).returncode == 0, DEADLINE_S, "health")
    had = _partitions_of(head, worker)
    nodes.admin("topics.create_partitioned_topic", "new", 4)
    assert len(head.ask(_SEND, "new", "0", "8")) == 8
    assert _partitions_of(head, worker) > had


@pytest.mark.timeout(900)
def test_the_node_of_the_catalog_is_lost_under_load_and_everything_goes_on_elsewhere(world: World) -> None:
    nodes = RayNodes(world)
    head, worker, flow = nodes.head, world.add_node(), Flow(world)
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    start_ray(worker, f"--address={head.address}:{PORT}")
    # Only this node keeps data from the beginning, so that it has the catalog.
    worker.run("pulsar-ray", "init-store", DATA_DIR)
    settings = ("PULSAR_RAY_REMOTE_DURABILITY=sync", f"PULSAR_RAY_NODE_LOSS_SECONDS={LOSS_S}")
    worker.run("env", *settings, "pulsar-ray", "start", "--data-dir", DATA_DIR, "--remote", REMOTE)
    head.run("pulsar-ray", "init-store", DATA_DIR)
    wait_until(lambda: _ships(head) == 2, DEADLINE_S, "both stores ship")
    lost = _store_of(head, worker)
    assert nodes.admin("broker")["catalog_host"] == worker.name
    nodes.retain_all()
    nodes.admin("namespaces.create", "public/other")
    nodes.admin("namespaces.policies.set", "public/other", "message_ttl", 77)
    for topic in ("t", "ids", "unused"):
        nodes.admin("topics.create_partitioned_topic", topic, 4)
    before = head.ask(_SEND, "ids", "0", "40")
    with flow.programs(head):
        worker.kill()
        died = time.monotonic()
        wait_until(lambda: _catalog_host(head) == head.name, DEADLINE_S, "a controller begins elsewhere")
        print(f"the catalog is elsewhere {time.monotonic() - died:.1f} s after the death of its node")
        wait_until(lambda: lost not in _stores(head), DEADLINE_S, "all of it is taken over")
        print(f"all is taken over {time.monotonic() - died:.1f} s after the death")
        flow.check("the takeover")
    assert set(flow.told("confirmed")) <= set(head.ask(READ_ALL))
    behind = head.ask(_SEND, "ids", "40", "40")
    assert head.ask(_CONSUME, "ids", "80") == {**before, **behind}
    assert len(head.ask(_SEND, "unused", "0", "8")) == 8
    assert "77" in _run(head, "namespaces", "policies", "get", "public/other", "message_ttl")
    worker.boot()
    start_ray(worker, f"--address={head.address}:{PORT}")
    wait_until(lambda: _ships(head) == 2, DEADLINE_S, "it comes back as a new store")
    kept = worker.run("ls", f"{DATA_DIR}/ended-{lost}").stdout
    assert "meta.sqlite" in kept
    assert nodes.admin("broker")["catalog_host"] == head.name
    wait_until(lambda: head.run("pulsar-ray", "health", check=False).returncode == 0, DEADLINE_S, "health")


@pytest.mark.timeout(900)
def test_a_head_that_has_lost_its_disk_goes_on_with_the_catalog_of_the_object_store(world: World) -> None:
    nodes, worker = _two_nodes(world, node_loss_seconds=LOSS_S)
    head = nodes.head
    nodes.admin("namespaces.create", "public/other")
    for topic in ("ids", "unused", "public/other/t"):
        nodes.admin("topics.create_partitioned_topic", topic, 4)
    before = head.ask(_SEND, "ids", "0", "80")
    lost = _store_of(head, head)
    head.kill()
    head.boot()
    head.run("find", DATA_DIR, "-mindepth", "1", "-delete")
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    worker.run("ray", "stop", "--force", check=False)
    start_ray(worker, f"--address={head.address}:{PORT}")
    # Neither the object store nor the cluster is named: the worker's store knows both.
    settings = ("PULSAR_RAY_REMOTE_DURABILITY=sync", f"PULSAR_RAY_NODE_LOSS_SECONDS={LOSS_S}")
    head.run("env", *settings, "pulsar-ray", "start", "--data-dir", DATA_DIR)
    assert nodes.admin("broker")["catalog_host"] == head.name
    wait_until(lambda: lost not in _stores(head) and _ships(head) == 2, DEADLINE_S, "all is taken over")
    behind = head.ask(_SEND, "ids", "80", "20")
    assert head.ask(_CONSUME, "ids", "100") == {**before, **behind}
    assert len(head.ask(_SEND, "unused", "0", "8")) == 8
    assert len(head.ask(_SEND, "public/other/t", "0", "8")) == 8
    wait_until(lambda: head.run("pulsar-ray", "health", check=False).returncode == 0, DEADLINE_S, "health")


def _catalog_host(node: Node) -> str:
    said = _run(node, "status")
    return next(
        (name for name in (f"node{n}" for n in range(1, 9)) if f"catalog        on {name}," in said), ""
    )


def _two_nodes(world: World, node_loss_seconds: int) -> tuple[RayNodes, Node]:
    """Start a broker on two nodes that ship what they store; return the second node too."""
    nodes = RayNodes(world)
    head = nodes.head
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    settings = ("PULSAR_RAY_REMOTE_DURABILITY=sync", f"PULSAR_RAY_NODE_LOSS_SECONDS={node_loss_seconds}")
    head.run("env", *settings, "pulsar-ray", "start", "--data-dir", DATA_DIR, "--remote", REMOTE)
    worker = nodes.add_worker()
    wait_until(lambda: _ships(head) == 2, DEADLINE_S, "both stores ship")
    return nodes, worker


def _ships(head: Node) -> int:
    """Return how many stores ship, if all do that are there."""
    said = head.run("pulsar-ray", "remote", "status", "--json", check=False).stdout
    states = json_in(said)
    return len(states) if all(state["is_ready"] and not state["problem"] for state in states) else 0


def _listed(head: Node) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json_in(head.run("pulsar-ray", "nodes", "--json").stdout)
    return listed


def _stores(head: Node) -> set[str]:
    return {str(each["store_id"]) for each in _listed(head)}


def _store_of(head: Node, node: Node) -> str:
    (store_id,) = [each["store_id"] for each in _listed(head) if each["host"] == node.name]
    return str(store_id)


def _partitions_of(head: Node, node: Node) -> int:
    return sum(int(each["partitions"]) for each in _listed(head) if each["host"] == node.name)


def _why_away(head: Node, store_id: str) -> str:
    return "".join(each["reason"] for each in _listed(head) if each["store_id"] == store_id)


def _run(node: Node, *command: str) -> str:
    """Run a command that may end with any code, and return all that it said."""
    return node.run("pulsar-ray", *command, check=False).stdout
