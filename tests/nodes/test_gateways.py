"""HTTP on every node: also on one that joins, and none is waited for where a node has gone."""

from __future__ import annotations

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, Node, World

DEADLINE_S = 90.0
URL = "http://127.0.0.1:8080"


def served(node: Node) -> bool:
    """Whether HTTP on a node lists the tenants."""
    answer = node.run("curl", "-s", "-m", "10", f"{URL}/admin/v2/tenants", check=False)
    return answer.returncode == 0 and "public" in answer.stdout


@pytest.mark.timeout(600)
def test_each_node_serves_http_and_those_that_join(world: World) -> None:
    nodes = RayNodes(world)
    head = nodes.head
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    every = "PULSAR_RAY_HTTP_ON_EVERY_NODE=true"
    head.run("env", every, "pulsar-ray", "start", "--data-dir", DATA_DIR, "--http", "8080")
    assert served(head)
    first = nodes.add_worker()
    wait_until(lambda: served(first), DEADLINE_S, "HTTP is served on a node that joins")
    assert first.run("pulsar-ray", "ui", "--no-open").stdout.strip() == URL
    first.kill()
    second = world.add_node()
    start_ray(second, f"--address={head.address}:{PORT}")
    wait_until(lambda: served(second), DEADLINE_S, "HTTP is served on the node that came")
    wait_until(lambda: len(gateways(nodes)) == 2, DEADLINE_S, "no actor waits for the node that went")
    head.run("pulsar-ray", "stop")
    assert not any(served(node) for node in (head, second))


def gateways(nodes: RayNodes) -> list[str]:
    """List the actors that serve HTTP."""
    names: list[str] = nodes.head.ask(
        "import ray\nray.init('auto', logging_level='ERROR')\n"
        "answer([actor['name'] for actor in ray.util.list_named_actors(all_namespaces=True)"
        " if 'http' in actor['name']])"
    )
    return names
