"""`python -m benchmarks.flows`: how many files and functions of the product a message runs through.

Counted on the stub cluster that tests use, client's and broker's side together, without `testing/`: a keyed
send, its delivery, its acknowledgment, a change of a policy, each in a broker that has done the same before;
and the first change of a namespace's policies, which begins its change log. The send is synchronous and
without batching, as a producer is by default. Run with PULSAR_RAY_PURE=1, as `make flows` does: no tracer
sees a compiled function.
For a moment all that runs behind the call counts too: receipts, durable cursors. The look around that each
actor takes once a second is no part of a flow: each begins behind it, and is counted anew if it met one.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from pulsar_ray.admin.admin import Admin
from pulsar_ray.broker.serving.session_host import TICK_S
from pulsar_ray.client.client import Client
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.stub_cluster import StubCluster

PACKAGE = f"{Path(sys.modules['pulsar_ray'].__path__[0])}/"
TOPIC = "persistent://public/default/flow"
WAIT_MS = 5_000
WARM_UP = 20
QUIET_S = 1.5
TICK = ("broker/serving/session_host.py", "_tick")
"""The look around that each actor takes once a second."""
BEHIND_TICK_S = 0.02
ATTEMPTS = 4


class Tracer:
    """Notes every function of the product that begins on any thread, while it is on."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] | None = None
        self._ticks_s: deque[float] = deque([0.0], 1000)

    def begin(self) -> None:
        """Trace this thread, and all that are started from now on."""
        threading.setprofile(self._entered)
        sys.setprofile(self._entered)

    def _entered(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or file.startswith(f"{PACKAGE}testing/"):
            return
        file, function = file.removeprefix(PACKAGE), frame.f_code.co_name
        if (file, function) == TICK:
            self._ticks_s.append(time.monotonic())
        if (seen := self._seen) is not None:
            seen.add((file, f"{function}:{frame.f_code.co_firstlineno}"))

    def count(self, act: Callable[[], object], settle_s: float, attempts: int = ATTEMPTS) -> tuple[int, int]:
        """Run `act`, and for a moment what follows from it; the numbers of files and functions.

        With several attempts `act` has to be of a kind that can be done again.
        """
        least: set[tuple[str, str]] | None = None
        for _ in range(attempts):
            time.sleep(QUIET_S)
            self._wait_for_ticks()
            began_s = time.monotonic()
            seen: set[tuple[str, str]] = set()
            self._seen = seen
            act()
            time.sleep(settle_s)
            self._seen = None
            least = seen if least is None or len(seen) < len(least) else least
            if self._ticks_s[-1] < began_s:
                break
        assert least is not None
        return len({file for file, _ in least}), len(least)

    def end(self) -> None:
        """Trace this thread no more, nor those that are started."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _wait_for_ticks(self) -> None:
        """Wait for the longest part of a second in which no actor looks around."""
        since_s = time.monotonic() - QUIET_S
        places = sorted({tick_s % TICK_S for tick_s in self._ticks_s if tick_s > since_s} or {0.0})
        gaps = zip(places, [*places[1:], places[0] + TICK_S], strict=True)
        begin, _ = max(gaps, key=lambda gap: gap[1] - gap[0])
        time.sleep((begin + BEHIND_TICK_S - time.monotonic()) % TICK_S)


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
    limits = itertools.count(9)

    def send_until_delivered() -> None:
        producer.send(b"y", partition_key="8")
        received.append(consumer.receive(WAIT_MS))

    def change_policy() -> None:
        admin.topics.policies.set(TOPIC, "max_producers", next(limits))

    # One that is acknowledged for each time that it may have to be counted.
    for _ in range(ATTEMPTS):
        send_until_delivered()
    counted = {
        "nothing": tracer.count(lambda: None, 0.7),
        "send until delivered": tracer.count(send_until_delivered, 0.0),
        "acknowledgment": tracer.count(lambda: consumer.acknowledge(received.pop(0)), 0.6),
        "first policy change": tracer.count(change_policy, 0.6, attempts=1),
        "policy change": tracer.count(change_policy, 0.3),
    }
    tracer.end()
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
