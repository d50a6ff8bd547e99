"""A disk that is lost for good: what lay there is given up, the rest is kept, and all go on."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import CONSUME, READ_ALL
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import DATA_DIR, json_in

DEADLINE_S = 120.0
_SEND = """
import sys, pulsar_ray
with pulsar_ray.Client() as client:
    producer = client.create_producer(sys.argv[1])
    stored = {}
    for number in range(40):
        text = f"{sys.argv[2]}-{number}"
        place = producer.send(text.encode(), partition_key=str(number))
        stored.setdefault(place.partition(), []).append(text)
    answer(stored)
"""


@pytest.mark.timeout(900)
def test_partitions_of_a_lost_disk_begin_anew_and_consumers_go_on(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    head, shared = ray_nodes.head, ray_nodes.world.shared
    ray_nodes.retain_all()
    ray_nodes.admin("topics.create_partitioned_topic", "t", 4)
    head.run("pulsar-ray", "brokers", "healthcheck")  # makes the heartbeat topics

    def stores() -> dict[str, dict[str, Any]]:
        listed: list[dict[str, Any]] = json_in(head.run("pulsar-ray", "nodes", "--json").stdout)
        return {node["store_id"]: node for node in listed if node["store_id"]}

    (lost,) = [each for each, node in stores().items() if node["host"] == worker.name]
    with (
        (shared / "output").open("w") as output,
        head.start("python", "-c", CONSUME, output=output) as consuming,
    ):
        wait_until((shared / "subscribed").exists, DEADLINE_S, "the consumer")
        before = head.ask(_SEND, "t", "before")
        worker.kill()
        worker.boot()
        worker.run("find", DATA_DIR, "-mindepth", "1", "-delete")
        worker.run("pulsar-ray", "init-store", DATA_DIR, "--replace")
        refused = head.run("pulsar-ray", "stores", "forget", "beef", check=False)
        assert "there is no store beef" in refused.stdout
        ray_nodes.start_worker(worker)
        (there,) = [each for each, node in stores().items() if node["host"] == head.name]
        refused = head.run("pulsar-ray", "stores", "forget", there, "--accept-loss", check=False)
        assert "so nothing of it is lost" in refused.stdout
        asked = head.run("pulsar-ray", "stores", "forget", lost[:8], check=False)
        assert asked.returncode == 1
        assert lost in stores(), "nobody agreed to it"
        gone = [
            name for name in asked.stdout.splitlines() if name.startswith("persistent://public/default/t-")
        ]
        assert gone
        assert len(gone) < 4, "all of the topic lay on one node"
        head.run("pulsar-ray", "stores", "forget", lost[:8], "--accept-loss")
        assert lost not in stores()
        behind = head.ask(_SEND, "t", "behind")
        wanted = {text for texts in behind.values() for text in texts}

        def received() -> set[str]:
            return set((shared / "received").read_text().splitlines())

        try:
            wait_until(lambda: wanted <= received(), DEADLINE_S, "what was sent behind the loss")
        finally:
            (shared / "stop").touch()
            print((shared / "output").read_text()[-4000:])
        assert consuming.wait(DEADLINE_S) == 0
    indexes = {name.rpartition("-")[2] for name in gone}
    assert set((shared / "replaced").read_text().split()) == indexes
    kept = {text for index, texts in before.items() if index not in indexes for text in texts}
    assert set(head.ask(READ_ALL)) == kept | wanted
    health = head.run("pulsar-ray", "health", check=False)
    assert health.returncode == 0, health.stdout
