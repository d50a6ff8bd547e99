"""`python -m benchmarks.flows`: how many files and functions of the product a message runs through.

Counted on the stub cluster that tests use, client's and broker's side together, without `testing/`: a keyed
send, its delivery, its acknowledgment, a change of a policy, each in a broker that has done the same before.
For a moment all that runs behind the call counts too: receipts, durable cursors.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.stub_cluster import StubCluster

PACKAGE = f"{Path(sys.modules['pulsar_ray'].__path__[0])}/"
TOPIC = "persistent://public/default/flow"
WAIT_MS = 5_000
WARM_UP = 20
QUIET_S = 1.0


class Tracer:
    """Notes every function of the product that begins on any thread, while it is on."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] | None = None

    def begin(self) -> None:
        """Trace this thread, and all that are started from now on."""
        threading.setprofile(self._entered)
        sys.setprofile(self._entered)

    def _entered(self, frame: FrameType, event: str, _: Any) -> None:
        seen = self._seen
        if seen is None or event != "call":
            return
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE) and not file.startswith(f"{PACKAGE}testing/"):
            seen.add((file.removeprefix(PACKAGE), f"{frame.f_code.co_name}:{frame.f_code.co_firstlineno}"))

    def count(self, act: Callable[[], object], settle_s: float) -> tuple[int, int]:
        """Run `act`, and for a moment what follows from it; the numbers of files and functions."""
        time.sleep(QUIET_S)
        self._seen = set()
        act()
        time.sleep(settle_s)
        seen, self._seen = self._seen, None
        return len({file for file, _ in seen}), len(seen)


def flows(directory: Path) -> dict[str, tuple[int, int]]:
    """Count each flow: (files, functions) by its name."""
    tracer = Tracer()
    tracer.begin()
    cluster = StubCluster(directory)
    client = Client._on(cluster, transport="socket")  # noqa: SLF001 - of the stub, as in tests
    admin = Admin._on(cluster)  # noqa: SLF001
    admin.topics.create_partitioned_topic(TOPIC, 2)
    producer = client.create_producer(TOPIC)
    consumer = client.subscribe(TOPIC, "s", ConsumerType.KeyShared)
    for number in range(WARM_UP):
        producer.send(b"x", partition_key=str(number))
        consumer.acknowledge(consumer.receive(WAIT_MS))
    received: list[Message] = []

    def send_until_delivered() -> None:
        producer.send(b"y", partition_key="8")
        received.append(consumer.receive(WAIT_MS))

    counted = {
        "nothing": tracer.count(lambda: None, 0.7),
        "send until delivered": tracer.count(send_until_delivered, 0.0),
        "acknowledgment": tracer.count(lambda: consumer.acknowledge(received[0]), 0.6),
        "policy change": tracer.count(lambda: admin.topics.policies.set(TOPIC, "max_producers", 9), 0.8),
    }
    client.close()
    cluster.close()
    return counted


def main() -> None:
    """Print a line for each flow."""
    with tempfile.TemporaryDirectory() as directory:
        for name, (files, functions) in flows(Path(directory)).items():
            print(f"{name}: {files} files, {functions} functions")


if __name__ == "__main__":
    main()
