"""`ray up` with cluster.yaml, by sshd, and what happens to such a cluster, with programs under way.

What is typed is what the runbook says, docs/cluster.md.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import Flow
from tests.nodes.ray_up import Laptop, built_wheel, check_tools, commands_of, give_python
from tests.nodes.world import HOME, ROOT, Node, World

DEADLINE_S = 240.0
RUNBOOK = commands_of(ROOT / "docs" / "cluster.md")
ALL = slice(None)
NEXT = "99.0.0"
DATA = f"{HOME}/.pulsar-ray"
RAY_OPTIONS = "--num-cpus=2 --object-store-memory=80000000"


_RECEIVE_REST = """
import pulsar_ray
with pulsar_ray.Client() as client:
    consumer = client.subscribe("t", "s")
    rest = []
    while True:
        try:
            message = consumer.receive(timeout_millis=5_000)
        except pulsar_ray.Timeout:
            break
        rest.append(message.data().decode())
        consumer.acknowledge(message)
answer(rest)
"""
_LOST = """
from pulsar_ray.admin import Admin
with Admin() as admin:
    answer("".join(node.store_id for node in admin.brokers.nodes() if node.state in ("lost", "away")))
"""


class Cluster:
    """Three machines, of which the first is the head, and a checker of what is sent and received on them."""

    def __init__(self, world: World, laptop: Laptop) -> None:
        self.world, self.laptop, self.flow = world, laptop, Flow(world)
        self.machines = [laptop.add_machine() for _ in range(3)]
        for machine in self.machines:
            give_python(machine)
        laptop.write_cluster(*self.machines, ray_options=RAY_OPTIONS)

    def follow(self, section: str, steps: slice = ALL, at: Node | None = None, **places: str) -> None:
        """Type what the runbook has there, on the laptop, or on a machine what is no command of `ray`."""
        for step in RUNBOOK[section][steps]:
            line = step
            for name, value in places.items():
                line = line.replace(name, value)
            if line.startswith("ray "):
                self.laptop.run(line)
            elif line.startswith("pulsar-ray "):
                assert at is not None, line
                at.run("env", f"PULSAR_RAY_DATA_DIR={DATA}", "bash", "-c", f"{line} <<< yes")
            else:
                assert "pip wheel" in line, f"{line} is nothing that was done before"

    def exec(self, command: str) -> str:
        return self.laptop.ray("exec", command)


@pytest.fixture
def next_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("next")


@pytest.fixture
def cluster(world: World, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    check_tools()
    return Cluster(world, Laptop(world, built_wheel(tmp_path_factory.mktemp("wheel"))))


def test_the_readme_begins_a_cluster_as_the_runbook_does() -> None:
    assert commands_of(ROOT / "README.md")["On a cluster"] == RUNBOOK["Begin"]


@pytest.mark.timeout(1800)
def test_a_cluster_comes_up_is_updated_loses_machines_and_goes_down(
    cluster: Cluster, next_checkout: Path
) -> None:
    head, one, two = cluster.machines
    cluster.follow("Begin")
    cluster.exec("pulsar-ray topics create t --partitions 6")
    with cluster.flow.programs(one, PULSAR_RAY_DATA_DIR=DATA):
        check_dashboard(cluster)
        assert "healthy: 3 stores answer" in cluster.exec("pulsar-ray health")

        assert NEXT not in cluster.exec("pulsar-ray --version")
        cluster.laptop.take_wheel(built_wheel(next_checkout, NEXT))
        cluster.follow("Restart or update everything")
        assert NEXT in cluster.exec("pulsar-ray --version")
        cluster.flow.check("a new version")

        two.kill()
        two.boot()
        cluster.follow("A worker died")
        cluster.flow.check("a worker's power cut")

        head.kill()
        head.boot()
        cluster.follow("The head died")
        cluster.flow.check("the head's power cut")
    cluster.follow("Stop")
    # `ray down` stops the head's Ray; that of the others ends when it has missed that for a minute.
    for machine in cluster.machines:
        wait_until(
            lambda on=machine: "raylet" not in on.run("ps", "-e", "-o", "comm").stdout,  # type: ignore[misc]
            DEADLINE_S,
            f"the end of Ray on {machine.name}",
        )
    # Everything is off, and comes on again.
    for machine in cluster.machines:
        machine.kill()
        machine.boot()
    cluster.follow("Begin")
    # The consumer stopped with the producer; what it had not received then is still there.
    rest = one.ask(_RECEIVE_REST)
    assert not set(cluster.flow.told("confirmed")) - set(cluster.flow.told("received")) - set(rest)


@pytest.mark.timeout(1200)
def test_a_lost_disk_is_replaced_and_forgotten(cluster: Cluster) -> None:
    two = cluster.machines[2]
    cluster.follow("Begin")
    cluster.exec("pulsar-ray topics create t --partitions 6")
    cluster.exec("seq 60 | pulsar-ray produce t")
    two.kill()
    shutil.rmtree(two.directory / "root" / "home" / ".pulsar-ray")
    two.boot()
    cluster.follow("A worker died", slice(1))
    cluster.follow("A disk died", slice(1), two, DIR=DATA)
    lost = wait_until(lambda: two.ask(_LOST), DEADLINE_S, "the lost store")
    named = RUNBOOK["A disk died"][1].split()[-1]
    cluster.follow("A disk died", slice(1, None), two, **{named: lost[: len(named)]})
    cluster.exec("pulsar-ray wait")
    assert "healthy: 3 stores answer" in cluster.exec("pulsar-ray health")
    cluster.exec("seq 60 | pulsar-ray produce t")


def check_dashboard(cluster: Cluster) -> None:
    """`ray dashboard` brings Ray's page to this machine."""
    command = [*cluster.world.entering("--net"), "curl", "-sf", "http://localhost:18265/api/version"]

    def is_shown() -> bool:
        return b"ray_version" in subprocess.run(command, capture_output=True, check=False).stdout

    with cluster.laptop.begin("ray dashboard cluster.yaml --port 18265"):
        wait_until(is_shown, DEADLINE_S, "the dashboard")
