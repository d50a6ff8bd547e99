"""A Ray cluster that is stopped and started as a whole, while programs that joined it for a Client go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import Flow
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import SHARED

SENT = 100
DEADLINE_S = 180.0
_JOINED_BY_ITSELF = f"""
import os, time, ray, pulsar_ray
ray.init(address="auto", log_to_driver=False)
producer = pulsar_ray.Client().create_producer("t", send_timeout_millis=5_000)
producer.send(b"0")
open("{SHARED}/joined", "w").close()
while True:
    time.sleep(0.1)
    try:
        producer.send(b"0")
    except pulsar_ray.BrokerGone as error:
        open("{SHARED}/refused", "w").write(str(error))
        break
    except pulsar_ray.PulsarException:
        pass
"""


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.timeout(900)
def test_programs_go_on_behind_a_restart_of_the_whole_cluster(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "t", 4)
    flow = Flow(ray_nodes.world)
    with flow.programs(worker):
        for node in (ray_nodes.head, worker):
            node.run("ray", "stop", "--force", check=False)
        ray_nodes.start_head()
        ray_nodes.start_worker(worker)
        flow.check("the restart")


@pytest.mark.timeout(600)
def test_a_program_that_joined_ray_by_itself_is_told_to_do_so_again(ray_nodes: RayNodes) -> None:
    shared, head = ray_nodes.world.shared, ray_nodes.head
    with (
        (shared / "output").open("w") as output,
        head.start("python", "-c", _JOINED_BY_ITSELF, output=output) as program,
    ):
        wait_until((shared / "joined").exists, DEADLINE_S, "the first message")
        head.run("ray", "stop", "--force", check=False)
        try:
            program.wait(DEADLINE_S)
        finally:
            print((shared / "output").read_text()[-4000:])
    assert "call ray.shutdown() and ray.init(), and make a new Client" in (shared / "refused").read_text()
