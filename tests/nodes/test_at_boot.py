"""Machines that start Ray and the broker by systemd's units, when all of them lose power at once."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from configparser import RawConfigParser

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import PORT
from tests.nodes.world import DATA_DIR, Node, World

UNITS = "/tmp/units"
DEADLINE_S = 240.0
SENT = 200
_OPTIONS = ("--num-cpus=2", "--object-store-memory=80000000", "--disable-usage-stats")
_SEND = f"""
import pulsar_ray
with pulsar_ray.Client() as client:
    producer = client.create_producer("t")
    for number in range({SENT}):
        producer.send(b"%d" % number)
answer({SENT})
"""
_RECEIVE = f"""
import pulsar_ray
with pulsar_ray.Client() as client:
    consumer = client.subscribe("t", "s", initial_position=pulsar_ray.InitialPosition.Earliest)
    answer(sorted(int(consumer.receive(60_000).data()) for _ in range({SENT})))
"""


def install(node: Node, part: str, *options: str) -> None:
    """Make the node's disk a store, and write its unit."""
    node.run("mkdir", "-p", UNITS)
    node.run("pulsar-ray", "init-store", DATA_DIR)
    node.run(
        *("pulsar-ray", "install-service", part, "--directory", UNITS, *options),
        *("--", f"--node-ip-address={node.address}", *_OPTIONS),
    )


@contextlib.contextmanager
def booted(node: Node, part: str) -> Iterator[None]:
    """Do what systemd does with the unit on a node that is up: start it, and again whenever it ends."""
    parser = RawConfigParser()
    parser.read_string(node.run("cat", f"{UNITS}/pulsar-ray-{part}.service").stdout)
    service = parser["Service"]
    assert service["Restart"] == "always"
    environment = dict(word.split("=", 1) for word in shlex.split(service["Environment"]))
    environment.pop("PATH")  # that of the checkout, which the unit's programs need here
    behind = service.get("ExecStartPost", "true").removeprefix("-")
    script = f"{behind} & while true; do {service['ExecStart']}; sleep {service['RestartSec']}; done"
    with (node.directory / "service.log").open("a") as output:
        try:
            with node.start("sh", "-c", script, output=output, **environment):
                yield
        finally:
            print((node.directory / "service.log").read_text()[-3000:])


def serves(node: Node) -> bool:
    return node.run("pulsar-ray", "health", "--this-node", check=False).returncode == 0


@pytest.mark.timeout(900)
def test_a_power_cut_of_all_machines_needs_nobody(world: World) -> None:
    head, worker = world.add_node(), world.add_node()
    install(head, "head", "--expect-stores", "2")
    install(worker, "worker", "--address", f"{head.address}:{PORT}")
    with booted(head, "head"), booted(worker, "worker"):
        head.run("pulsar-ray", "wait", "--stores", "2", timeout_s=DEADLINE_S)
        head.run("pulsar-ray", "topics", "create", "t", "--partitions", "4")
        assert head.ask(_SEND) == SENT
        assert serves(head)
        assert serves(worker)
        for node in (head, worker):
            node.kill()
    for node in (worker, head):
        node.boot()
    with booted(worker, "worker"):
        # Its head takes longer to boot.
        log = worker.directory / "service.log"
        wait_until(lambda: "Failed to connect" in log.read_text(), DEADLINE_S, "a worker without a head")
        assert not serves(worker)
        with booted(head, "head"):
            wait_until(lambda: serves(head) and serves(worker), DEADLINE_S, "both stores")
            assert worker.ask(_RECEIVE) == list(range(SENT))
            assert "2 stores" in head.run("pulsar-ray", "health").stdout
