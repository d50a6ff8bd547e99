"""The nodes themselves: that they are as apart as machines are."""

from __future__ import annotations

import subprocess

import psutil
import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.world import DATA_DIR, SHARED, NoNamespaces, World, kill_started

_LISTEN = "import socket; s = socket.create_server(('', 7000)); print('listens'); s.accept(); print('met')"
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 2)"
_ORPHAN = "import os, sys; os.fork() or (os.fork() and os._exit(0)) or os._exit(0)"


@pytest.fixture(autouse=True)
def nodes(world: World) -> None:
    """Two of them."""
    try:
        world.add_node()
        world.add_node()
    except NoNamespaces as refusal:
        pytest.skip(f"this machine refuses the namespaces of a node: {refusal}")


def test_each_has_a_name_a_disk_and_processes_of_its_own(world: World) -> None:
    for node in world.nodes:
        assert node.run("hostname").stdout.strip() == node.name
        node.run("sh", "-c", f"echo {node.name} > {DATA_DIR}/name; echo {node.name} >> {SHARED}/names")
        assert node.run("sh", "-c", "ls -d /proc/[0-9]* | wc -l").stdout.strip() in ("3", "4", "5")
    assert [(node.disk / "name").read_text() for node in world.nodes] == ["node1\n", "node2\n"]
    assert (world.shared / "names").read_text() == "node1\nnode2\n"


def test_they_reach_each_other_unless_cut(world: World) -> None:
    one, two = world.nodes
    with two.start("python", "-c", _LISTEN) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listens\n"
        one.cut()
        assert one.run("python", "-c", _CONNECT, "node2", check=False).returncode
        one.heal()
        # The card of the other one may have to be asked for again.
        wait_until(lambda: not one.run("python", "-c", _CONNECT, two.address, check=False).returncode)
        assert listening.stdout.readline() == "met\n"


def test_nothing_outside_is_reached(world: World) -> None:
    for place in ("192.0.2.1", "somewhere.example"):
        assert world.nodes[0].run("python", "-c", _CONNECT, place, check=False).returncode


def test_a_killed_one_comes_back_with_its_disk_under_another_address(world: World) -> None:
    _, two = world.nodes
    two.run("touch", f"{DATA_DIR}/kept")
    with two.start("sleep", "1000") as sleeping:
        wait_until(lambda: psutil.Process(sleeping.pid).children(), what="the command")
        two.kill()
        sleeping.wait(10)
    two.boot(two.other_address())
    assert two.run("ls", DATA_DIR).stdout.split() == ["kept"]
    addresses = two.run("ip", "-o", "-4", "addr", "show", "eth0").stdout
    assert f"{two.other_address()}/" in addresses
    assert f"{world.nodes[0].address}/" not in addresses


def test_without_its_disk_the_directory_is_empty(world: World) -> None:
    _, two = world.nodes
    two.run("touch", f"{DATA_DIR}/kept")
    two.kill()
    two.boot(mounts_disk=False)
    assert not two.run("ls", DATA_DIR).stdout


def test_orphans_leave_no_zombies(world: World) -> None:
    one, _ = world.nodes
    one.run("python", "-c", _ORPHAN)

    def zombies() -> list[str]:
        return [line for line in one.run("ps", "-eo", "stat=").stdout.splitlines() if line.startswith("Z")]

    wait_until(lambda: not zombies(), what="no zombies")


def test_a_started_command_is_killed_alone(world: World) -> None:
    one, _ = world.nodes
    with one.start("sleep", "1234") as sleeping:
        wait_until(lambda: "sleep 1234" in one.run("ps", "-eo", "args=").stdout, what="the command")
        kill_started(sleeping)
    assert "sleep 1234" not in one.run("ps", "-eo", "args=").stdout
    assert one.run("hostname").stdout == "node1\n"


def test_all_end_with_the_world(world: World) -> None:
    with world.nodes[0].start("sleep", "1000") as sleeping:
        wait_until(lambda: psutil.Process(sleeping.pid).children(), what="the command")
        (child,) = psutil.Process(sleeping.pid).children()
        world.close()
        sleeping.wait(10)
        wait_until(lambda: not child.is_running(), what="the end of what ran there")
    assert subprocess.run(["ip", "link", "show", "bridge0"], check=False, capture_output=True).returncode
