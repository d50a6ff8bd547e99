"""Programs that the group `moves` runs on a node of its cluster."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from typing import Any

import pulsar_ray
from pulsar_ray.admin.brokers import BrokerNode
from pulsar_ray.testing.waiting import wait_until

MESSAGE = b"x" * 1024
VALUE_BYTES = 10_000
MOST_VALUES = 1_000
WINDOW = 1_000
PACE, PORTION_S = 10_000, 0.01
ONE_BY_ONE, PACED, AS_FAST_AS_IT_CAN = "one by one", "10 MB a second", "as fast as it can"
BEFORE_S = 5.0
BEHIND_S = 2.0
TIMEOUT_MS = 120_000


def _client() -> pulsar_ray.Client:
    return pulsar_ray.Client(operation_timeout_seconds=TIMEOUT_MS // 1000)


def fill(topics: list[str], bytes_each: int) -> None:
    """Publish so many bytes to each topic."""
    count = max(1, bytes_each // VALUE_BYTES)
    values = [os.urandom(VALUE_BYTES) for _ in range(min(count, MOST_VALUES))]
    with _client() as client:
        for topic in topics:
            client.subscribe(topic, "audit").close()
            producer = client.create_producer(topic, send_timeout_millis=TIMEOUT_MS)
            for begin in range(0, count, MOST_VALUES):
                producer.send_many(values[: count - begin])
            producer.close()


def create(topics: list[str]) -> None:
    """Create topics that nobody uses yet."""
    with pulsar_ray.Admin() as admin:
        for topic in topics:
            admin.topics.create_topic(topic)


def open_until_shipped(topics: list[str]) -> None:
    """Have each topic run once, and wait until all of them sleep and are in the object store."""
    with _client() as client, pulsar_ray.Admin() as admin:
        for topic in topics:
            client.create_producer(topic, send_timeout_millis=TIMEOUT_MS).close()

        def all_sleep() -> bool:
            is_running = admin.overview()["counts"]["running"] > 0
            return not (is_running or any(node.remote_waiting_bytes for node in admin.brokers.nodes()))

        wait_until(all_sleep, TIMEOUT_MS / 1000, "all partitions sleep and are shipped")


def messages_in(topic: str) -> int:
    """Return how many messages can be read from a topic's beginning."""
    with _client() as client, client.create_reader(topic, pulsar_ray.MessageId.earliest) as reader:
        count = 0
        while reader.has_message_available():
            reader.read_next(TIMEOUT_MS)
            count += 1
        return count


class Publisher:
    """Publishes in a thread, and notes when each receipt came."""

    def __init__(self, client: pulsar_ray.Client, topic: str, way: str) -> None:
        self.receipts: list[float] = []
        self._way = way
        self._stop = threading.Event()
        self._producer = client.create_producer(
            topic, send_timeout_millis=TIMEOUT_MS, block_if_queue_full=True, max_pending_messages=WINDOW
        )
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        if self._way == ONE_BY_ONE:
            while not self._stop.is_set():
                self._producer.send(MESSAGE)
                self.receipts.append(time.monotonic())
            return
        began, sent = time.monotonic(), 0
        while not self._stop.is_set():
            if self._way == PACED and sent >= (time.monotonic() - began) * PACE:
                time.sleep(PORTION_S)
                continue
            self._producer.send_async(MESSAGE, self._confirmed)
            sent += 1
        self._producer.flush()

    def _confirmed(self, result: Any, _: Any) -> None:
        assert result == pulsar_ray.Result.Ok, result
        self.receipts.append(time.monotonic())

    def close(self) -> None:
        """Stop, once all is confirmed."""
        self._stop.set()
        self._thread.join()
        self._producer.close()

    def rate(self, begin: float, end: float) -> float:
        """Return the receipts a second."""
        return sum(begin <= each < end for each in self.receipts) / max(end - begin, 0.001)

    def longest_gap(self, begin: float) -> tuple[float, float]:
        """Return the begin and the end of the longest time without a receipt."""
        times = [each for each in self.receipts if each >= begin]
        return max(pairwise(times), key=lambda gap: gap[1] - gap[0])


def move(topic: str, way: str) -> dict[str, Any]:
    """Move a topic to the other node while it is published to, and tell what became of the publisher."""
    with _client() as client, pulsar_ray.Admin() as admin:
        places = [node.host for node in admin.brokers.nodes()]
        publisher = Publisher(client, topic, way)
        began = time.monotonic()
        time.sleep(BEFORE_S)
        asked = time.monotonic()
        # Where it is already nothing moves.
        (moved,) = admin.topics.move(topic, places[0]) or admin.topics.move(topic, places[1])
        ended = time.monotonic()
        time.sleep(BEHIND_S)
        publisher.close()
    assert moved.is_moved, moved
    stopped, again = publisher.longest_gap(asked)
    return {
        "pause_s": again - stopped,
        "before_s": stopped - asked,
        "took_s": ended - asked,
        "alone": publisher.rate(began + 1.0, asked),
        "beside": publisher.rate(asked, stopped),
        "bytes": moved.total_bytes,
    }


def _node(admin: pulsar_ray.Admin, number: int) -> BrokerNode:
    return sorted(admin.brokers.nodes(), key=lambda node: node.host)[number]


def drain(number: int) -> float:
    """Return how many seconds it takes until a node is empty."""
    with pulsar_ray.Admin() as admin:
        host = _node(admin, number).host
        began = time.monotonic()
        admin.brokers.drain(host)
        took_s = time.monotonic() - began
        admin.brokers.undrain(host)
        return took_s


def partitions_on(number: int) -> int:
    """Return how many partitions a node has."""
    with pulsar_ray.Admin() as admin:
        return _node(admin, number).partitions
