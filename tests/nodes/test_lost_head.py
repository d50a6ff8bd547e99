"""A head node that is killed and comes back with its files, while programs on another node use the broker."""

from __future__ import annotations

from collections import Counter

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import PRODUCE, READ_ALL
from tests.nodes.ray_nodes import RayNodes

SENT_BEFORE = 100
SENT_MEANWHILE = 300
DEADLINE_S = 120.0
# Ray warned of each call to a dead actor once.
OUTPUT_LINES = 20


@pytest.mark.timeout(600)
def test_a_head_that_is_killed_stops_nobody_elsewhere_and_comes_back_with_everything(
    ray_nodes: RayNodes,
) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "t", 4)
    shared = ray_nodes.world.shared

    def confirmed() -> list[str]:
        path = shared / "confirmed"
        return path.read_text().splitlines() if path.exists() else []

    with (
        (shared / "output").open("w") as output,
        worker.start("python", "-c", PRODUCE, output=output) as producing,
    ):
        wait_until(lambda: len(confirmed()) > SENT_BEFORE, DEADLINE_S, "the first messages")
        ray_nodes.head.kill()
        enough = len(confirmed()) + SENT_MEANWHILE
        wait_until(lambda: len(confirmed()) > enough, DEADLINE_S, "messages on the node that is up")
        (shared / "stop").touch()
        assert producing.wait(DEADLINE_S) == 0
    said = (shared / "output").read_text()
    assert len(said.splitlines()) < OUTPUT_LINES, said[:2000]

    ray_nodes.head.boot()
    ray_nodes.start_head()
    # Ray wants a node that has lost its head to be started again.
    worker.run("ray", "stop", "--force", check=False)
    ray_nodes.start_worker(worker)
    stored = Counter(ray_nodes.head.ask(READ_ALL))
    assert not set(confirmed()) - stored.keys(), "confirmed, and not there"
    assert max(stored.values()) == 1
