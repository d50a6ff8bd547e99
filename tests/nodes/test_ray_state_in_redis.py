"""Ray keeps its state in Redis, as KubeRay's fault tolerance has it: a head that is replaced ends nobody."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import Flow
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, Node, World

DEADLINE_S = 240.0


@contextlib.contextmanager
def redis_on(node: Node) -> Iterator[str]:
    """Run Redis on a node; its address."""
    command = ("redis-server", "--protected-mode", "no", "--bind", "0.0.0.0", "--save", "", "--dir", "/tmp")
    with (node.directory / "redis.log").open("w") as output, node.start(*command, output=output):
        wait_until(lambda: node.run("redis-cli", "ping", check=False).stdout.strip() == "PONG", DEADLINE_S)
        yield f"{node.address}:6379"


def name_head(world: World, head: Node) -> None:
    """Have all nodes find the head by the name "head", as pods do by that of a service."""
    for node in world.nodes:
        (node.directory / "etc" / "hosts").write_text(f"{world.hosts()}{head.address} head\n")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("moves", [False, True], ids=["same address", "other address"])
def test_a_head_that_is_replaced_ends_nobody(world: World, moves: bool) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed here")
    keeper = world.add_node()
    with redis_on(keeper) as address:
        nodes = RayNodes(world, RAY_REDIS_ADDRESS=address, RAY_gcs_rpc_server_reconnect_timeout_s="600")
        worker = world.add_node()
        name_head(world, nodes.head)
        nodes.start_head()
        worker.run("pulsar-ray", "init-store", DATA_DIR)
        start_ray(worker, f"--address=head:{PORT}", **nodes.variables)
        nodes.head.run("pulsar-ray", "wait", "--stores", "2")
        nodes.admin("topics.create_partitioned_topic", "t", 4)
        flow = Flow(world)
        with flow.programs(worker):
            nodes.head.kill()
            nodes.head.boot(nodes.head.other_address() if moves else None)
            name_head(world, nodes.head)
            nodes.start_head()
            nodes.head.run("pulsar-ray", "wait", "--stores", "2", timeout_s=DEADLINE_S)
            flow.check("the head's return")
        # It was the same Ray all the time: nobody had to leave one and join another.
        assert not [line for line in flow.told("output") if "joined the next Ray" in line]
        nodes.head.run("pulsar-ray", "health")
