"""Every finding has a remedy, and comes from figures alone."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.broker.health.finding import Finding
from pulsar_ray.config import GIB, MIB, Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.maintenance.doctor import diagnosis
from pulsar_ray.maintenance.doctor.machine import (
    DiskFacts,
    LimitFacts,
    MemoryFacts,
    PortFacts,
    RayDoor,
    VersionFacts,
)

MANY_WRITES = (0.4, 0.5, 0.6, 3.0, 0.5)


def disk(**facts: Any) -> DiskFacts:
    usual: dict[str, Any] = {
        "path": "/data",
        "exists": True,
        "is_writable": True,
        "free_bytes": 500 * GIB,
        "total_bytes": 1000 * GIB,
        "fsync_ms": MANY_WRITES,
    }
    return DiskFacts(**(usual | facts))


def told(findings: list[Finding]) -> list[tuple[str, str]]:
    """Severity and subject of what is not well; all of that has a remedy."""
    wrong = [finding for finding in findings if finding.severity != diagnosis.OK]
    assert all(finding.remedy for finding in wrong)
    return [(finding.severity, finding.subject) for finding in wrong]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, []),
        ({"exists": False}, []),
        ({"exists": False, "obstacle": "is no directory"}, [("error", "data directory")]),
        ({"is_writable": False, "fsync_ms": ()}, [("error", "data directory")]),
        ({"free_bytes": 150 * GIB}, [("warning", "disk")]),
        ({"free_bytes": GIB}, [("error", "disk")]),
        ({"network": "/data is on NFS"}, [("error", "disk")]),
        ({"memory": "tmpfs"}, [("warning", "disk")]),
        ({"fsync_ms": (30.0, 25.0, 40.0)}, [("warning", "disk speed")]),
        ({"fsync_ms": (1.0, 300.0, 250.0)}, [("error", "disk speed")]),
    ],
)
def test_disks(facts: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert told(diagnosis.diagnose_disk(disk(**facts), Settings())) == expected


def test_one_slow_write_among_quick_ones_is_said_and_no_fault() -> None:
    found = diagnosis.diagnose_disk(disk(fsync_ms=(1.0, 1.0, 900.0)), Settings())
    assert told(found) == []
    assert found[-1].reason == "a durable write takes 1.0 ms in the middle and 900.0 ms at most"


def test_clocks() -> None:
    assert told(diagnosis.diagnose_clock(True, disk())) == []
    assert told(diagnosis.diagnose_clock(None, disk())) == []
    assert told(diagnosis.diagnose_clock(False, disk())) == [("warning", "clock")]
    assert told(diagnosis.diagnose_clock(True, disk(newest_file_s=3600.0))) == [("error", "clock")]
    assert told(diagnosis.diagnose_clock(True, disk(newest_file_s=0.5))) == []


def test_limits() -> None:
    assert told(diagnosis.diagnose_limits(LimitFacts(65_536, -1, -1), 100)) == []
    assert told(diagnosis.diagnose_limits(LimitFacts(-1, 100_000, 100_000), 100)) == []
    assert told(diagnosis.diagnose_limits(LimitFacts(1024, 1024, 512), 100)) == [
        ("warning", "open files"),
        ("warning", "processes"),
        ("warning", "processes of the container"),
    ]


def memory(total: int, available: int, shared: int = GIB) -> MemoryFacts:
    return MemoryFacts(total, available, shared)


def test_memory() -> None:
    well = diagnosis.diagnose_memory(memory(16 * GIB, 12 * GIB), Settings())
    assert told(well) == []
    unbounded = diagnosis.diagnose_memory(memory(16 * GIB, 12 * GIB), Settings(max_active_actors=0))
    assert told(unbounded) == [("warning", "memory")]
    too_many = diagnosis.diagnose_memory(memory(8 * GIB, 6 * GIB), Settings(max_active_actors=500))
    assert told(too_many) == [("warning", "memory")]
    assert too_many[0].remedy == f"set it to {8 * GIB // (80 * MIB)} or less, or to -1"
    full = diagnosis.diagnose_memory(memory(8 * GIB, 100 * MIB, shared=10 * MIB), Settings())
    assert told(full) == [("warning", "memory"), ("warning", "shared memory")]


def test_a_small_machine_on_its_defaults_is_not_scolded_for_them() -> None:
    found = diagnosis.diagnose_memory(memory(GIB // 2, GIB // 2), Settings())
    assert found[0].severity == diagnosis.OK


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (VersionFacts("3.11.7", "2.60.0", "25.0.1", "Linux"), []),
        (VersionFacts("3.14.0", "2.61.0", "30.0.0", "Linux"), ["Python", "Ray", "pyarrow"]),
        (VersionFacts("3.9.1", "2.9.3", "", "Linux"), ["Python", "Ray", "pyarrow"]),
        (VersionFacts("3.11.7", "2.60.0", "25.0.1", "Darwin"), ["system"]),
    ],
)
def test_versions(facts: VersionFacts, expected: list[str]) -> None:
    assert [subject for _, subject in told(diagnosis.diagnose_versions(facts))] == expected


def test_versions_that_are_too_old_are_errors_and_newer_ones_are_not() -> None:
    old = diagnosis.diagnose_versions(VersionFacts("3.9.1", "2.9.3", "10.0", "Linux"))
    new = diagnosis.diagnose_versions(VersionFacts("3.14.0", "3.0.0", "30.0", "Linux"))
    assert {finding.severity for finding in old} == {"error"}
    assert {finding.severity for finding in new} == {"warning"}


def test_ports() -> None:
    ranged = Settings(tcp_port_range="20000-20099")
    assert told(diagnosis.diagnose_ports(Settings(), 0, 1, 50)) == []
    assert told(diagnosis.diagnose_ports(ranged, 10, 100, 50)) == []
    assert told(diagnosis.diagnose_ports(ranged, 10, 100, 300)) == [("warning", "ports")]
    assert told(diagnosis.diagnose_ports(ranged, 100, 100, 50)) == [("error", "ports")]


def test_ports_of_ray_that_others_have_are_named_with_the_holder_and_the_option() -> None:
    held = [
        PortFacts(6379, is_free=False, holder="redis-server (process 7)", command="redis-server *:6379"),
        PortFacts(8265, is_free=False),
        PortFacts(52365, is_free=True),
    ]
    found = diagnosis.diagnose_ray_ports(held)
    assert told(found) == [("warning", "ports")] * 2
    assert "6379 is taken by redis-server (process 7): `ray start --head` does not start" in found[0].reason
    assert "`--port`" in found[0].remedy
    assert "another user's process" in found[1].reason


@pytest.mark.parametrize(
    "command",
    [
        "/venv/lib/python3.11/site-packages/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp",
        "/venv/bin/python -u /venv/lib/python3.11/site-packages/ray/dashboard/dashboard.py --host=x",
        "ray::DashboardAgent",
        "ray-dashboard-NodeHead-0 (/venv/bin/python)",
    ],
)
def test_ports_that_ray_itself_has_are_as_they_should_be(command: str) -> None:
    (found,) = diagnosis.diagnose_ray_ports([PortFacts(8265, False, "python (process 7)", command)])
    assert (found.severity, found.reason) == (diagnosis.OK, "Ray has 8265")
    (found,) = diagnosis.diagnose_ray_ports([PortFacts(8265, is_free=True)])
    assert found.severity == diagnosis.OK


@pytest.mark.parametrize(
    ("hosts", "who"),
    [
        (("127.0.0.1",), "every user of this machine"),
        (("::ffff:127.0.0.1", "::1"), "every user of this machine"),
        (("::",), "whoever reaches the ports"),
        (("0.0.0.0", "127.0.0.1"), "whoever reaches the ports"),
    ],
)
def test_a_ray_that_asks_for_no_token_is_told_with_who_may_run_code_there(
    hosts: tuple[str, ...], who: str
) -> None:
    closed = RayDoor(7, "ada", hosts, asks_for_token=True)
    (found,) = diagnosis.diagnose_ray_doors([closed], "")
    assert (found.severity, found.subject) == (diagnosis.OK, "access")
    (found,) = diagnosis.diagnose_ray_doors([closed, RayDoor(8, "ada", hosts, asks_for_token=False)], "")
    assert (found.severity, found.subject) == ("warning", "access")
    assert who in found.reason
    assert "run code as ada: the Ray of process 8" in found.reason
    assert "RAY_AUTH_MODE=token" in found.remedy


def test_a_token_that_others_may_read_guards_nothing() -> None:
    assert told(diagnosis.diagnose_ray_doors([], "")) == []
    (found,) = diagnosis.diagnose_ray_doors([], "/home/ada/.ray/auth_token")
    assert found.remedy.startswith("`chmod 600 /home/ada/.ray/auth_token`")
    (found,) = diagnosis.diagnose_ray_doors([], "/home/ada l/auth_token")
    assert found.remedy.startswith("`chmod 600 '/home/ada l/auth_token'`")


def test_java() -> None:
    assert told(diagnosis.diagnose_java(None, "")) == []
    assert told(diagnosis.diagnose_java("Java 17 in /usr", "")) == []
    assert told(diagnosis.diagnose_java("", "no Java 17 is here")) == [("warning", "Java")]


def test_leftovers() -> None:
    assert told(diagnosis.diagnose_leftovers("/data", 0, 0, (), has_stale_record=False)) == []
    lost = [(7, "/data", True), (8, "/tmp/gone", False)]
    found = diagnosis.diagnose_leftovers("/data", 3, 4096, lost, has_stale_record=True)
    assert told(found) == [("warning", "leftovers")] * 4
    assert found[2].remedy == "end it with `kill 7`"
    assert found[3].reason == "process 8 is an embedded broker of /tmp/gone, which is gone"


def test_a_broker_whose_controller_does_not_answer() -> None:
    for is_served in (True, False):
        assert told(diagnosis.diagnose_broker("/data", is_served, "")) == []
    problem = "no controller runs; the catalog of topics is on node2"
    found = diagnosis.diagnose_broker("/data", True, problem)
    assert (told(found), found[0].reason) == ([("error", "broker")], problem)


def test_settings() -> None:
    assert told(diagnosis.diagnose_settings(None)) == []
    error = InvalidConfiguration("log_format is 'xml': give one of text, json")
    assert told(diagnosis.diagnose_settings(error)) == [("error", "settings")]
