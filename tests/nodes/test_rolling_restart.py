"""Workers whose Ray is stopped in order and started again, one after the other, as for an update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import CONSUME
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import SHARED

SENT = 100
DEADLINE_S = 180.0
_PRODUCE = f"""
import collections, json, os, sys, time, pulsar_ray
from pulsar_ray.errors import PulsarException
is_keyed, prefix = sys.argv[1] == "keyed", sys.argv[1]
confirmed = open(f"{SHARED}/{{prefix}}", "w", buffering=1)
errors, longest, before = collections.Counter(), 0.0, time.monotonic()
with pulsar_ray.Client(operation_timeout_seconds=120) as client:
    producer = client.create_producer("t", producer_name=prefix)
    number = 0
    while not os.path.exists("{SHARED}/stop"):
        try:
            value, key = f"{{prefix}}-{{number}}".encode(), str(number % 16) if is_keyed else None
            producer.send(value, partition_key=key)
            now = time.monotonic()
            longest, before = max(longest, now - before), now
            confirmed.write(f"{{prefix}}-{{number}}\\n")
        except PulsarException as error:
            errors[type(error).__name__] += 1
            time.sleep(0.05)
        number += 1
        time.sleep(0.01)
json.dump({{"errors": errors, "longest": longest}}, open(f"{SHARED}/{{prefix}}.json", "w"))
"""


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.timeout(900)
def test_workers_are_restarted_one_by_one_and_nothing_is_lost(ray_nodes: RayNodes) -> None:
    workers = [ray_nodes.add_worker() for _ in range(2)]
    ray_nodes.admin("topics.create_partitioned_topic", "t", 6)
    shared, head = ray_nodes.world.shared, ray_nodes.head
    kinds = ("plain", "keyed")

    def confirmed() -> list[str]:
        return [line for kind in kinds for line in _lines(shared / kind)]

    def check_flow(what: str) -> None:
        enough = {kind: len(_lines(shared / kind)) + SENT for kind in kinds}
        for kind in kinds:
            wait_until(
                lambda kind=kind: len(_lines(shared / kind)) > enough[kind],  # type: ignore[misc]
                DEADLINE_S,
                f"{kind} messages after {what}",
            )
        so_far = set(confirmed())
        wait_until(
            lambda: so_far <= set(_lines(shared / "received")), DEADLINE_S, f"all messages after {what}"
        )

    with (
        (shared / "output").open("w") as output,
        head.start("python", "-c", CONSUME, output=output) as consuming,
        head.start("python", "-c", _PRODUCE, "plain", output=output) as plain,
        head.start("python", "-c", _PRODUCE, "keyed", output=output) as keyed,
    ):
        try:
            check_flow("the beginning")
            for worker in workers:
                worker.run("ray", "stop")
                ray_nodes.start_worker(worker)
                check_flow(f"the restart of {worker.name}")
        finally:
            (shared / "stop").touch()
            print((shared / "output").read_text()[-3000:])
        for process in (plain, keyed, consuming):
            assert process.wait(DEADLINE_S) == 0
    told = {kind: json.loads((shared / f"{kind}.json").read_text()) for kind in kinds}
    print(told)
    assert told["plain"]["errors"] == {}
    assert set(told["keyed"]["errors"]) <= {"WrongNode"}
