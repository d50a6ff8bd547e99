"""Receives numbered messages on a thread, and knows when each came first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pulsar_ray import Consumer, Message
from pulsar_ray.admin import Admin
from pulsar_ray.errors import Timeout
from pulsar_ray.testing.waiting import wait_until

RECEIVE_MS = 300
_NAMED = 10


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def acknowledge(consumer: Consumer, message: Message) -> None:
    """Take a message for good."""
    consumer.acknowledge(message)


class ReceivingThread:
    """Gives each message that comes its answer, until it is stopped.

    An error ends the thread, and is raised by whoever asks for what came.
    """

    def __init__(self, consumer: Consumer, answer: Callable[[Consumer, Message], None] = acknowledge) -> None:
        self._consumer = consumer
        self._answer = answer
        self._came_ms: dict[int, int] = {}
        self._error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._receive()
        except Exception as error:  # noqa: BLE001 - the test's own thread raises it
            self._error = error

    def _receive(self) -> None:
        try:
            message = self._consumer.receive(RECEIVE_MS)
        except Timeout:
            return
        self._came_ms.setdefault(int(message.data()), now_ms())
        self._answer(self._consumer, message)

    @property
    def came_ms(self) -> dict[int, int]:
        """When each message came first. Raises what ended the thread."""
        if self._error is not None:
            raise self._error
        return dict(self._came_ms)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def wait_for_all(
    threads: Sequence[ReceivingThread],
    count: int,
    timeout_s: float,
    admin: Admin,
    topic: str,
    subscription: str,
) -> None:
    """Wait until the messages up to `count` have come; else say which have not, and how things stand."""

    def missing() -> list[int]:
        came = set().union(*(thread.came_ms for thread in threads))
        return sorted(set(range(count)) - came)

    try:
        wait_until(lambda: not missing(), timeout_s)
    except AssertionError:
        stats = admin.topics.stats(topic)["subscriptions"][subscription]
        blocked = admin.topics.why_blocked(topic, subscription)
        raise AssertionError(
            f"{len(missing())} of {count} did not come within {timeout_s} s, {missing()[:_NAMED]} first: "
            f"{blocked}; {stats}"
        ) from None


def came_early(threads: Sequence[ReceivingThread], due_ms: Mapping[int, int]) -> list[tuple[int, int]]:
    """The first numbers that came before they were due, and how many milliseconds."""
    early = [
        (number, due_ms[number] - came)
        for thread in threads
        for number, came in thread.came_ms.items()
        if came < due_ms[number]
    ]
    return early[:_NAMED]
