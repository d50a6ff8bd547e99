"""A Spark stream over a topic whose node is lost for good goes on behind the takeover."""

from __future__ import annotations

import importlib.util

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import PRODUCE
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, SHARED, World, json_in

DEADLINE_S = 180.0
LOSS_S = 5
MORE = 100
REMOTE = f"file://{SHARED}/bucket"
_STREAM = f"""
import os, time
from pathlib import Path
import ray
from pulsar_ray.transport.actor_names import NAMESPACE
from pulsar_ray_spark import read_stream, session
from tests.spark.stream_sink import Sink
shared = Path("{SHARED}")
ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False)
spark = session.start("stream", executor_memory="512m", conf={{"spark.ui.enabled": "false"}})
(shared / "session").touch()
while not (shared / "topic").exists():
    time.sleep(0.1)
stream = read_stream(spark, "t", name="q", start="earliest", columns=["value"], max_messages_per_trigger=500)
query = stream.foreach_batch(Sink(shared / "sink").take).start()
while not (shared / "enough").exists():
    query.await_termination(0.2)  # raises what the query failed of
query.stop()
session.stop()
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="Spark is an extra")
def test_a_stream_has_every_confirmed_message_once_behind_a_takeover(world: World) -> None:
    nodes = RayNodes(world)
    head, shared = nodes.head, world.shared
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    settings = ("PULSAR_RAY_REMOTE_DURABILITY=sync", f"PULSAR_RAY_NODE_LOSS_SECONDS={LOSS_S}")
    head.run("env", *settings, "pulsar-ray", "start", "--data-dir", DATA_DIR, "--remote", REMOTE)

    def ships() -> list[str]:
        said = head.run("pulsar-ray", "remote", "status", "--json", check=False).stdout
        states = json_in(said)
        return [each["store_id"] for each in states if each["is_ready"] and not each["problem"]]

    def confirmed() -> list[int]:
        return [int(line) for line in (shared / "confirmed").read_text().splitlines()]

    def numbers() -> list[int]:
        files = (shared / "sink").glob("[0-9]*")
        return sorted(int(number) for file in files for number in file.read_text().split())

    with (
        (shared / "output").open("a") as output,
        head.start("python", "-c", _STREAM, output=output) as stream,
    ):
        try:
            # The executors are here, where nothing is lost, and the topic on the node that comes next.
            wait_until((shared / "session").exists, DEADLINE_S, "Spark's session")
            worker = nodes.add_worker()
            wait_until(lambda: len(ships()) == 2, DEADLINE_S, "both stores ship")
            nodes.admin("topics.create_partitioned_topic", "t", 4)
            with head.start("python", "-c", PRODUCE, output=output) as producing:
                (shared / "topic").touch()
                wait_until(lambda: (shared / "sink").is_dir() and len(numbers()) > MORE, DEADLINE_S, "rows")
                worker.kill()
                wait_until(lambda: len(ships()) == 1, DEADLINE_S, "the node is gone")
                enough = len(confirmed()) + MORE
                wait_until(lambda: len(confirmed()) > enough, DEADLINE_S, "messages behind the takeover")
                (shared / "stop").touch()
                assert producing.wait(DEADLINE_S) == 0
            sent = set(confirmed())
            wait_until(lambda: sent <= set(numbers()), DEADLINE_S, "all that was confirmed")
            assert stream.poll() is None, "the query has failed"
            (shared / "enough").touch()
            assert stream.wait(DEADLINE_S) == 0
        finally:
            print((shared / "output").read_text()[-4000:])
    found = numbers()
    assert len(found) == len(set(found))
