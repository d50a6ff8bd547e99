"""What a partition has on its disk and does not confirm yet is seen by nobody, and answered to nobody."""

from __future__ import annotations

import threading

from pulsar_ray.client.client import Client
from pulsar_ray.managed_ledger.log.commit import LogEnd
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, values


class Held:
    """Holds back what a partition confirms, as a second place that has to have it would."""

    def __init__(self, broker: Broker, topic: str) -> None:
        server = broker.cluster.partition(topic).server
        assert server is not None
        self._intake = server.intake
        self._loop = server._loop
        self._ends: list[LogEnd] = []
        self._holds = True
        self.durable = threading.Event()
        self._intake._on_durable = self._reached

    def _reached(self, end: LogEnd) -> None:
        self._ends.append(end)
        self.durable.set()
        if not self._holds:
            self._intake.confirm(end)

    def let_go(self) -> None:
        """Confirm all that is durable, and what comes at once."""
        self._loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        self._holds = False
        if self._ends:
            self._intake.confirm(self._ends[-1])


def test_messages_are_seen_when_they_are_confirmed_and_not_before(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    reader = client.create_reader(topic, MessageId.earliest)
    producer.send(b"first")
    assert values(consumer, 1) == [b"first"]
    assert reader.read_next(WAIT_MS).data() == b"first"
    held = Held(broker, topic)
    confirmed = threading.Event()
    producer.send_async(b"second", lambda *_: confirmed.set())
    assert held.durable.wait(20)
    # Each of these asks the partition, behind the write.
    assert not reader.has_message_available()
    late = client.subscribe(topic, "late")
    late.seek(MessageId.latest)
    assert not confirmed.is_set()
    held.let_go()
    assert confirmed.wait(20)
    assert values(consumer, 1) == [b"second"]
    assert values(late, 1) == [b"second"], "published, as far as anybody could know, behind the seek"
    assert reader.has_message_available()
    assert reader.read_next(WAIT_MS).data() == b"second"
