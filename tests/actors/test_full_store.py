"""A bulk read that Ray's object store has no room for, on a Ray with a small one and a full spill disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy
import ray
from pulsar_ray import Client
from pulsar_ray.data.full_store import tried_while_full
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.reading.readers import READERS, BlockForm
from pulsar_ray.errors import ObjectStoreFull

# The smallest store that Ray takes, and every disk counts as full.
for attempt in range(3):
    try:
        ray.init(
            num_cpus=2,
            object_store_memory=80 << 20,
            include_dashboard=False,
            _system_config={"local_fs_capacity_threshold": 0.0001},
        )
        break
    except Exception as error:  # Ray waits for 30 s, which a busy machine may need
        print("another attempt after", error, file=sys.stderr)
        ray.shutdown()
client = Client(data_dir="store", operation_timeout_seconds=120)
producer = client.create_producer("t", send_timeout_millis=0)
client.subscribe("t", "keep").close()
for _ in range(40):
    producer.send(bytes(1 << 20))
# Arrays that refer to the store: objects alone may be spilled before Ray has looked at the disk.
in_use = [ray.get(ray.put(numpy.zeros(10 << 20, numpy.uint8))) for _ in range(5)]
with BrokerPlanner().plan(["t"], "earliest", "latest") as plan:
    read = lambda: READERS.read(plan.ranges, [0] * len(plan.ranges), BlockForm())
    try:
        read()
    except ObjectStoreFull as error:
        print("refused:", error)

    def pause(seconds):
        in_use.clear()
        return False

    print("read:", tried_while_full(read, pause).messages)
client.close()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_read_without_room_is_a_typed_error_and_succeeds_once_there_is_some(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    print(ran.stderr[-4000:])
    refused, read = (line for line in ran.stdout.splitlines() if line.startswith(("refused:", "read:")))
    for part in (
        "ObjectStoreFull",
        "reading persistent://public/default/t: ",
        "of 80 MiB",
        "Read fewer columns",
    ):
        assert part in refused
    assert read == "read: 40"
