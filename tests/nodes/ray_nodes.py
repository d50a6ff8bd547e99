"""Ray and a broker on the nodes of a world."""

from __future__ import annotations

import json
from typing import Any

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.world import DATA_DIR, Node, World

PORT = 6379
JOIN_DEADLINE_S = 90.0
_RAY_OPTIONS = ("--num-cpus=2", "--object-store-memory=80000000", "--disable-usage-stats")
_TOO_LATE = "timed out during startup"
_STARTS = 3
_ASK_ADMIN = """
import json, sys
from pulsar_ray.admin import Admin
with Admin() as admin:
    call = admin
    for name in sys.argv[1].split("."):
        call = getattr(call, name)
    answer(call(*json.loads(sys.argv[2])))
"""


class RayNodes:
    """Nodes of one Ray cluster; the first one is the head."""

    def __init__(self, world: World, **variables: str) -> None:
        self.world = world
        self.variables = variables
        """Of the environment in which Ray is started."""
        self.head = world.add_node()

    def start_head(self) -> None:
        """Start Ray on the head node, which is up, and the broker on it, whose other stores may be away."""
        start_ray(self.head, "--head", f"--port={PORT}", "--include-dashboard=false", **self.variables)
        self.head.run("pulsar-ray", "start", "--data-dir", DATA_DIR)

    def start_worker(self, node: Node) -> None:
        """Start Ray on a node that is up; returns when the broker has all running nodes' stores."""
        start_ray(node, f"--address={self.head.address}:{PORT}", **self.variables)
        self.wait_for_stores()

    def add_worker(self) -> Node:
        """One more node with Ray on it, whose store the broker has."""
        node = self.world.add_node()
        node.run("pulsar-ray", "init-store", DATA_DIR)
        self.start_worker(node)
        return node

    def wait_for_stores(self) -> None:
        """Wait until the broker has a store for each node that is up."""
        up = sum(node.is_up for node in self.world.nodes)
        wait_until(lambda: len(self.admin("broker")["stores"]) == up, JOIN_DEADLINE_S, f"{up} stores")

    def admin(self, method: str, *arguments: Any, on: Node | None = None) -> Any:
        """What a method of Admin, for instance "topics.stats", answers on a node; on the head by default."""
        return (on or self.head).ask(_ASK_ADMIN, method, json.dumps(arguments))

    def retain_all(self) -> None:
        """Keep what is consumed in the default namespace.

        A partition that goes to sleep deletes what everybody has acknowledged. A test that reads a topic from
        the beginning to see that nothing is lost would miss it, wherever programs stand still for that long.
        """
        kept = "retention_time_in_minutes=-1", "retention_size_in_mb=-1"
        self.head.run("pulsar-ray", "namespaces", "policies", "set", "public/default", "retention", *kept)


def start_ray(node: Node, *place: str, **variables: str) -> None:
    """Run `ray start` on a node that is up; again where a busy machine lets Ray come up too late."""
    for attempt in range(1, _STARTS + 1):
        environment = (f"{name}={value}" for name, value in variables.items())
        command = ("ray", "start", *place, f"--node-ip-address={node.address}", *_RAY_OPTIONS)
        started = node.run("env", *environment, *command, check=False)
        if started.returncode == 0:
            return
        assert attempt < _STARTS, started.stdout
        assert _TOO_LATE in started.stdout, started.stdout
        node.run("ray", "stop", "--force", check=False)
