"""Three nodes are drained and switched off in turn, while a program publishes and another one consumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, SHARED, Node, World, json_in

DEADLINE_S = 240.0
PARTITIONS = 6
MORE = 100
REMOTE = f"file://{SHARED}/bucket"
_PRODUCE = f"""
import collections, json, os, pulsar_ray, time
counts, errors, longest_s = collections.Counter(), [], 0.0
confirmed = open("{SHARED}/confirmed", "w", buffering=1)
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    producer = client.create_producer("t", send_timeout_millis=120_000)
    while not os.path.exists("{SHARED}/stop"):
        key = str(sum(counts.values()) % 16)
        began = time.monotonic()
        try:
            producer.send(f"{{key}} {{counts[key]}}".encode(), partition_key=key)
        except pulsar_ray.PulsarException as error:
            errors.append(str(error))
        confirmed.write(f"{{key}} {{counts[key]}}\\n")
        longest_s = max(longest_s, time.monotonic() - began)
        counts[key] += 1
        time.sleep(0.005)
json.dump([errors, longest_s], open("{SHARED}/told", "w"))
"""
_CONSUME = f"""
import os, pulsar_ray
received = open("{SHARED}/received", "w", buffering=1)
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    consumer = client.subscribe("t", "s", initial_position=pulsar_ray.InitialPosition.Earliest)
    while True:
        try:
            message = consumer.receive(timeout_millis=1_000)
        except pulsar_ray.Timeout:
            if os.path.exists("{SHARED}/consumed"):
                break
            continue
        received.write(message.data().decode() + "\\n")
        consumer.acknowledge(message)
"""
_READ = """
import pulsar_ray
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    reader = client.create_reader("t", pulsar_ray.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data().decode())
    answer(found)
"""


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _by_key(lines: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line in lines:
        key, number = line.split()
        found.setdefault(key, []).append(int(number))
    return found


@pytest.mark.parametrize("remote", [[], ["--remote", REMOTE]], ids=["copied", "shipped"])
@pytest.mark.timeout(1_800)
def test_each_of_three_nodes_is_emptied_and_switched_off_under_load(world: World, remote: list[str]) -> None:
    nodes = RayNodes(world)
    head, shared = nodes.head, world.shared
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    durability = ["env", "PULSAR_RAY_REMOTE_DURABILITY=sync"] if remote else []
    head.run(*durability, "pulsar-ray", "start", "--data-dir", DATA_DIR, *remote)
    workers = [nodes.add_worker() for _ in range(3)]
    # The head keeps the catalog, and nothing else.
    head.run("pulsar-ray", "nodes", "drain", head.name)
    if remote:
        wait_until(lambda: _ships(head) == 4, DEADLINE_S, "all stores ship")
    nodes.admin("topics.create_partitioned_topic", "t", PARTITIONS)
    with (
        (shared / "output").open("w") as output,
        head.start("python", "-c", _PRODUCE, output=output) as producing,
        head.start("python", "-c", _CONSUME, output=output) as consuming,
    ):
        try:
            _check_flow(shared, "the beginning")
            for worker in workers:
                head.run("pulsar-ray", "nodes", "drain", worker.name, timeout_s=DEADLINE_S)
                assert _state(head, worker) == "drained"
                worker.kill()
                _check_flow(shared, f"{worker.name} was switched off")
                worker.boot()
                start_ray(worker, f"--address={head.address}:{PORT}")
                wait_until(lambda: _is_taken_in(head, worker), DEADLINE_S, "its store is there")  # noqa: B023
                head.run("pulsar-ray", "nodes", "undrain", worker.name)
                wait_until(lambda: _is_balanced(head), DEADLINE_S, "all nodes have their shares")
                _check_flow(shared, f"{worker.name} has its share again")
        finally:
            (shared / "stop").touch()
            print((shared / "output").read_text()[-3000:])
        assert producing.wait(DEADLINE_S) == 0
        sent = _lines(shared / "confirmed")
        wait_until(lambda: len(set(_lines(shared / "received"))) >= len(sent), DEADLINE_S, "all arrive")
        (shared / "consumed").touch()
        assert consuming.wait(DEADLINE_S) == 0
    errors, longest_s = json.loads((shared / "told").read_text())
    print(f"{len(sent)} messages, the longest pause of the publisher {longest_s:.2f} s")
    assert errors == []
    assert _by_key(head.ask(_READ)) == _by_key(sent)
    assert _by_key(_lines(shared / "received")) == _by_key(sent)
    health = head.run("pulsar-ray", "health", check=False)
    assert health.returncode == 0, health.stdout


def _check_flow(shared: Path, when: str) -> None:
    """All that was confirmed until now arrives, and more is confirmed."""
    enough = len(_lines(shared / "confirmed")) + MORE
    wait_until(lambda: len(_lines(shared / "confirmed")) > enough, DEADLINE_S, f"messages when {when}")
    so_far = set(_lines(shared / "confirmed"))
    wait_until(lambda: so_far <= set(_lines(shared / "received")), DEADLINE_S, f"all arrives when {when}")


def _node(head: Node, node: Node) -> dict[str, str]:
    listed = json_in(head.run("pulsar-ray", "nodes", "--json").stdout)
    found: dict[str, str] = next((each for each in listed if each["host"] == node.name), {})
    return found


def _state(head: Node, node: Node) -> str:
    return _node(head, node).get("state", "")


def _is_taken_in(head: Node, node: Node) -> bool:
    return _state(head, node) in ("drained", "draining", "serving")


def _is_balanced(head: Node) -> bool:
    """Ask for a balance; on a busy machine a move may be broken off, and is asked for again."""
    done = head.run("pulsar-ray", "nodes", "balance", check=False, timeout_s=DEADLINE_S)
    print(done.stdout[-500:])
    return done.returncode == 0


def _ships(head: Node) -> int:
    return head.run("pulsar-ray", "remote", "status", "--json").stdout.count('"is_ready": true')
