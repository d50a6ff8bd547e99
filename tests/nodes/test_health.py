"""The health of a broker on several nodes, asked on each of them, while one is away."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import DATA_DIR, Node, json_in

DEADLINE_S = 90.0
UNHEALTHY = 3


def health(node: Node) -> tuple[int, dict[str, Any]]:
    """Exit code and report of the command on a node; a probe of its store, or a program that joins Ray."""
    done = node.run("pulsar-ray", "--data-dir", DATA_DIR, "health", "--json", check=False)
    report: dict[str, Any] = json_in(done.stdout)
    return done.returncode, report


def listed(node: Node) -> list[dict[str, Any]]:
    """The nodes that the command lists on a node."""
    rows: list[dict[str, Any]] = json_in(node.run("pulsar-ray", "nodes", "--json").stdout)
    return rows


def errors(node: Node) -> list[tuple[str, str]]:
    """Kinds and subjects of what does not work."""
    return [
        (found["kind"], found["subject"])
        for found in health(node)[1]["findings"]
        if found["severity"] == "error"
    ]


@pytest.mark.timeout(400)
def test_every_node_names_the_one_that_is_away_with_its_partitions(ray_nodes: RayNodes) -> None:
    head = ray_nodes.head
    lost, other = ray_nodes.add_worker(), ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "t", 6)
    stores = {store["host"]: store["storeId"] for store in ray_nodes.admin("stats")["stores"]}
    for node in (head, lost, other):
        code, report = health(node)
        assert (code, report["healthy"], report["stores"]) == (0, True, 3)
    head.run("pulsar-ray", "wait", "--stores", "3", "--timeout-seconds", "30")
    ray_nodes.admin("brokers.expect_stores", 4)
    assert ("broker", "") in errors(other)
    ray_nodes.admin("brokers.expect_stores", 3)
    assert errors(other) == []

    lost.kill()

    def partitions_away(node: Node) -> int:
        return [kind for kind, _ in errors(node)].count("partition")

    # At first its store does not answer; then the broker knows that it is away, with what it had.
    for node in (head, other):
        wait_until(partial(partitions_away, node), DEADLINE_S, f"the absence on {node.name}")
        code, report = health(node)
        assert (code, report["healthy"], report["stores"]) == (UNHEALTHY, False, 2)
        assert ("store", stores[lost.name]) in errors(node)
        assert partitions_away(node) == 2
        (store,) = [found for found in report["findings"] if found["subject"] == stores[lost.name]]
        assert store["host"] == "", "no probe of a node that runs is about it"
        assert f"last seen on {lost.name} ({DATA_DIR})" in store["reason"]
        assert "2 partitions are not served" in store["reason"]
        assert store["remedy"]
    (row,) = [row for row in listed(other) if row["host"] == lost.name]
    assert (row["state"], row["partitions"], row["free_bytes"]) == ("away", 2, None)
    assert row["since_ms"] > 0
    assert [row["state"] for row in listed(head)].count("serving") == 2
    given_up = head.run("pulsar-ray", "wait", "--timeout-seconds", "1", check=False)
    assert (given_up.returncode, lost.name in given_up.stdout) == (UNHEALTHY, True)
    # Every other command that tells of the broker names it as well.
    status = head.run("pulsar-ray", "status", check=False)
    assert status.returncode == UNHEALTHY
    assert lost.name in status.stdout
    stats = ray_nodes.admin("topics.stats", "t")["partitions"].values()
    assert [lost.name in part["refused"] for part in stats if part.get("away")] == [True] * 2
    shown = head.run("pulsar-ray", "top", "--once").stdout
    assert "2 partitions away" in shown
    log = head.run("sh", "-c", "cat /tmp/ray/session_latest/logs/pulsar_ray.log").stdout
    assert any("WARNING controller" in line and lost.name in line for line in log.splitlines())

    lost.boot()
    ray_nodes.start_worker(lost)
    head.run("pulsar-ray", "wait", "--timeout-seconds", "60")
    assert [row["state"] for row in listed(lost)] == ["serving"] * 3
    wait_until(lambda: health(head)[0] == 0, DEADLINE_S, "health")
    assert health(lost)[1]["stores"] == 3
