"""The node of the catalog: which one is taken, and what people are told while it is away."""

from __future__ import annotations

from functools import partial

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.test_founding import start_ray
from tests.nodes.world import DATA_DIR, Node, World, json_in

DEADLINE_S = 120.0
UNHEALTHY = 3
NO_BROKER = 1


def started_broker(node: Node) -> str:
    """Start a broker by this node; the node of its catalog."""
    node.run("pulsar-ray", "start", "--data-dir", DATA_DIR)
    return str(
        node.ask("from pulsar_ray.admin import Admin\nwith Admin() as a: answer(a.broker()['catalog_host'])")
    )


def said_of_catalog(node: Node, *command: str) -> tuple[int, bool]:
    """The exit code of a command on a node, and whether it names the node of the catalog and the way out."""
    done = node.run("pulsar-ray", "--data-dir", DATA_DIR, *command, check=False)
    said = done.stdout
    return done.returncode, "the catalog of topics is on node2 (store" in said and "--rebuild-catalog" in said


@pytest.mark.timeout(400)
def test_a_broker_that_a_worker_starts_has_its_catalog_on_the_head(world: World) -> None:
    nodes = RayNodes(world)
    worker = world.add_node()
    start_ray(nodes, nodes.head)
    start_ray(nodes, worker)
    assert started_broker(worker) == nodes.head.name
    assert not (worker.disk / "meta.sqlite").exists()


@pytest.mark.timeout(600)
def test_whatever_is_asked_first_names_the_node_of_the_catalog_while_it_is_away(world: World) -> None:
    nodes = RayNodes(world)
    head, worker = nodes.head, world.add_node()
    start_ray(nodes, head)
    start_ray(nodes, worker)
    # Only this node keeps data from the beginning, so that it has the catalog.
    worker.run("pulsar-ray", "init-store", DATA_DIR)
    assert started_broker(worker) == worker.name
    head.run("pulsar-ray", "init-store", DATA_DIR)
    nodes.wait_for_stores()
    nodes.admin("topics.create_partitioned_topic", "t", 2)

    worker.kill()

    # Ray takes a while to see that the node is gone; the store says where the catalog is all the time.
    assert said_of_catalog(head, "health") == (NO_BROKER, True)
    assert said_of_catalog(head, "doctor") == (UNHEALTHY, True)
    wait_until(partial(_says_so, head, "topics", "list"), DEADLINE_S, "Ray knows that the node is gone")
    assert said_of_catalog(head, "status") == (NO_BROKER, True)
    assert said_of_catalog(head, "health") == (NO_BROKER, True)
    assert said_of_catalog(head, "doctor") == (UNHEALTHY, True)
    # Also where nobody says which directory it is, and where a new broker would be begun beside it.
    for command in (("status",), ("health",), ("start", "--data-dir", "/tmp/other")):
        done = head.run("pulsar-ray", *command, check=False)
        assert (done.returncode, "node2 (store" in done.stdout) == (NO_BROKER, True), done.stdout

    worker.boot()
    start_ray(nodes, worker)
    nodes.wait_for_stores()
    findings = head.run("pulsar-ray", "--data-dir", DATA_DIR, "health", "--json").stdout
    assert json_in(findings)["healthy"]


def _says_so(node: Node, *command: str) -> bool:
    return "node2 (store" in node.run("pulsar-ray", "--data-dir", DATA_DIR, *command, check=False).stdout
