"""Drivers, executors, readers and partitions of a stream are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.demo.environment import java_on_path
from tests.running_broker import Broker, partition_actor
from tests.spark.killing_actors import is_executor, is_reader, kill_one
from tests.spark.stream_sink import Sink

ROOT = Path(__file__).parents[2]
STARTED_S = 300
DRIVERS = 4


@contextmanager
def driver(address: str, topic: str, sink: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the query, and its JVM; both are killed at the end."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.stream_driver", address, topic, str(sink)],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1])
def test_each_message_is_counted_once_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    topic, directory, log = "kills", tmp_path / "sink", tmp_path / "driver.log"
    sink, sent = Sink(directory), 0
    with java_on_path():
        broker = Broker(tmp_path / "data")
    producer = broker.client().create_producer(topic, block_if_queue_full=True, batching_enabled=True)

    def publish(count: int) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            producer.send_async(b"%d" % number, None)
        producer.flush()
        sent += count

    try:
        publish(1000)
        for life in range(DRIVERS):
            with driver(broker.address, topic, directory, log) as process:

                def await_further(process: subprocess.Popen[bytes] = process) -> None:
                    before = len(sink.counts())
                    publish(3000)

                    def is_further() -> bool:
                        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
                        return len(sink.counts()) > before + 1  # one may have been read already

                    wait_until(is_further, STARTED_S, "another batch of this driver")

                await_further()
                if life == 0:
                    kill_one(is_executor, "an executor", chance)
                elif life == 1:
                    broker.kill(partition_actor(topic))
                elif life == 2:
                    kill_one(is_reader, "a reader", chance)
                await_further()
                if life == DRIVERS - 1:
                    wait_until(lambda: sink.numbers().total() >= sent, STARTED_S, "all messages")
                else:
                    # The moment is random, and no condition.
                    time.sleep(chance.uniform(0, 3))
        assert sink.numbers() == Counter(range(sent))
    finally:
        broker.close()
