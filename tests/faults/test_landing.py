"""A landing whose process is killed at any moment goes on without losing or repeating a message."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.faults.conftest import DEADLINE_S
from tests.running_broker import Broker, partition_actor

LANDER = """
import sys, ray
from pulsar_ray_spark import land
address, topic, path, until = sys.argv[1:]
ray.init(address, namespace="faults", log_to_driver=False)
landing = land(
    topic, path, name=topic, interval=0.01, until=until or None, max_bytes_per_file=1, service_url=address
)
print("lands", flush=True)
landing.await_termination()
print("landed", flush=True)
"""
KILLS = 4
MESSAGES = 3_000


def start_lander(broker: Broker, topic: str, path: Path, until: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LANDER, broker.address, topic, str(path), until]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def landed(path: Path) -> Counter[bytes]:
    return Counter(
        value for file in path.glob("*.parquet") for value in pq.read_table(file)["value"].to_pylist()
    )


@pytest.mark.long
def test_a_landing_that_is_killed_lands_each_message_once(broker: Broker, topic: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed of the kills: {seed}")
    rng = random.Random(seed)
    path = tmp_path / "landed"
    producer = broker.client().create_producer(topic)
    sent: list[bytes] = []

    def publish() -> None:
        values = [b"%d" % number for number in range(len(sent), len(sent) + MESSAGES)]
        producer.send_many(values)
        sent.extend(values)

    publish()
    for kill in range(KILLS):
        lander = start_lander(broker, topic, path)
        try:
            files = len(list(path.glob("*.parquet")))
            wait_until(
                lambda before=files: len(list(path.glob("*.parquet"))) > before,  # type: ignore[misc]
                DEADLINE_S,
                "a landed file",
            )
            for _ in range(rng.randrange(1, 5)):
                publish()
            if kill == KILLS // 2:
                broker.kill(partition_actor(topic))
        finally:
            lander.kill()
            lander.communicate()
        publish()
    last = start_lander(broker, topic, path, "latest")
    output, _ = last.communicate(timeout=2 * DEADLINE_S)
    assert output == "lands\nlanded\n"
    assert landed(path) == Counter(sent)
