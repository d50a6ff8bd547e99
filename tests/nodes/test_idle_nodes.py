"""What Ray's autoscaler is told of nodes with and without a store."""

from __future__ import annotations

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR

_NODE_ID = """
import ray
ray.init("auto", log_to_driver=False, logging_level="ERROR")
answer(ray.get_runtime_context().get_node_id())
"""
_IDLE_MS = """
import sys
from ray.autoscaler.v2.sdk import get_cluster_status
status = get_cluster_status(sys.argv[1])
idle = {node.node_id: node.resource_usage.idle_time_ms for node in [*status.active_nodes, *status.idle_nodes]}
answer(idle.get(sys.argv[2], -1))
"""
_NODES = """
import pulsar_ray
with pulsar_ray.Admin() as admin:
    answer({node.host: [node.state, node.partitions] for node in admin.brokers.nodes()})
"""
IDLE_MS = 20_000
"""Longer than a node that is looked at as often as in the beginning would ever be idle."""
DEADLINE_S = 150.0


@pytest.mark.timeout(500)
def test_a_node_that_was_emptied_is_idle_to_ray_until_it_is_taken_back(ray_nodes: RayNodes) -> None:
    head = f"{ray_nodes.head.address}:{PORT}"
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "t", 2)
    node_id = worker.ask(_NODE_ID)

    def idle_ms() -> int:
        return int(ray_nodes.head.ask(_IDLE_MS, head, node_id))

    def of_worker() -> tuple[str, int]:
        state, partitions = ray_nodes.head.ask(_NODES)[worker.name]
        return state, partitions

    ray_nodes.head.run("pulsar-ray", "nodes", "drain", worker.name)
    wait_until(lambda: idle_ms() > IDLE_MS, DEADLINE_S, "the node is idle")
    assert of_worker()[0] == "drained"
    ray_nodes.head.run("pulsar-ray", "nodes", "undrain", worker.name)
    wait_until(lambda: of_worker()[0] == "serving", DEADLINE_S, "it serves")
    wait_until(lambda: idle_ms() == 0, DEADLINE_S, "the node is in use")
    ray_nodes.head.run("pulsar-ray", "nodes", "balance")
    wait_until(lambda: of_worker()[1] > 0, DEADLINE_S, "it has its share")


@pytest.mark.timeout(500)
def test_a_node_without_a_store_is_idle_to_ray_and_one_with_a_store_is_not(ray_nodes: RayNodes) -> None:
    head = f"{ray_nodes.head.address}:{PORT}"
    worker = ray_nodes.world.add_node()
    start_ray(worker, f"--address={head}", **ray_nodes.variables)
    node_id = worker.ask(_NODE_ID)

    def idle_ms() -> int:
        return int(ray_nodes.head.ask(_IDLE_MS, head, node_id))

    wait_until(lambda: idle_ms() > IDLE_MS, DEADLINE_S, "the node is idle")
    [refused] = ray_nodes.admin("broker")["refused_stores"]
    assert refused["host"] == worker.name

    worker.run("pulsar-ray", "init-store", DATA_DIR)
    ray_nodes.head.run("pulsar-ray", "nodes")
    ray_nodes.wait_for_stores()
    # Nothing runs there but the actor of the store.
    wait_until(lambda: idle_ms() == 0, DEADLINE_S, "the node is in use")
