"""Executors are killed in the middle of a write."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.demo.environment import java_on_path
from tests.running_broker import Broker
from tests.spark.killing_actors import is_executor, kill_one
from tests.spark.write_driver import RESULT, ROWS

ROOT = Path(__file__).parents[2]
STARTED_S = 300
ENDED_S = 900


def stored_values(broker: Broker, topic: str) -> Counter[int]:
    consumer = broker.client().subscribe(topic, "keep")
    found: Counter[int] = Counter()
    while found.total() < ROWS or consumer.has_message_available():
        found.update(map(int, consumer.receive_arrow(timeout_millis=60_000)["value"].to_pylist()))
    return found


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("executors", [1, 2])
@pytest.mark.parametrize("moment", ["rows are computed", "messages are stored"])
def test_each_row_is_stored_once_though_an_executor_is_killed(
    tmp_path: Path, moment: str, executors: int
) -> None:
    topic, mark, log = "written", tmp_path / "computes", tmp_path / "driver.log"
    with java_on_path():
        broker = Broker(tmp_path / "data")
    broker.client().subscribe(topic, "keep").close()
    arguments = [broker.address, topic, str(mark), str(executors)]
    with log.open("wb") as errors, Admin(broker.address) as admin:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.write_driver", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:

            def has_come() -> bool:
                assert driver.poll() is None, log.read_text(errors="replace")[-4000:]
                if moment == "rows are computed":
                    return mark.exists()
                return int(admin.topics.stats(topic)["msgInCounter"]) > 0

            wait_until(has_come, STARTED_S, f"the moment when {moment}")
            kill_one(is_executor, "an executor", random.Random())
            output, _ = driver.communicate(timeout=ENDED_S)
        finally:
            driver.kill()
            driver.communicate()
            assert driver.returncode == 0, log.read_text(errors="replace")[-4000:]
    assert stored_values(broker, topic) == Counter(range(ROWS))
    # Spark's log stands between.
    writes = [line.removeprefix(RESULT) for line in output.splitlines() if line.startswith(RESULT)]
    assert writes == [f"written {ROWS} 0", f"written {ROWS} {ROWS}"]
    broker.close()
