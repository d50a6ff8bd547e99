"""Nodes that are lost with their disks, while everybody publishes and receives, over every carrier."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.actors import controller
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import Timeout
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.stub_actors import HOST
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker

FIRST, SECOND = "first", "second"
MORE = 30


@pytest.fixture(autouse=True)
def _looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "WATCH_INTERVAL_S", 0.5)


@pytest.fixture
def three_nodes(make_broker: Callable[..., Broker], tmp_path: Path) -> Broker:
    """A broker on three nodes that ship into a directory, and wait for it before they confirm."""
    url = (tmp_path / "bucket").as_uri()
    broker = make_broker(remote_url=url, remote_durability="sync", node_loss_seconds=1)
    for host in (FIRST, SECOND):
        broker.cluster.add_node(host)
    for host in (HOST, FIRST, SECOND):
        broker.cluster.wait_shipping(host)
    return broker


class Work:
    """Somebody who sends messages with keys, and somebody who takes them, each on a thread."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.sent: list[tuple[bytes, MessageId]] = []
        self.got: list[Message] = []
        self._topic, self._broker = topic, broker
        self._stop = threading.Event()
        self._producer = broker.client(operation_timeout_seconds=60).create_producer(
            topic, send_timeout_millis=60_000
        )
        self._consumer = broker.client(operation_timeout_seconds=60).subscribe(
            topic, "audit", ConsumerType.KeyShared, initial_position=EARLIEST
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        while not self._stop.is_set():
            value = b"%d" % len(self.sent)
            self.sent.append((value, self._producer.send(value, partition_key=f"k{len(self.sent) % 5}")))

    def _receive(self) -> None:
        while not self._stop.is_set() or len({m.data() for m in self.got}) < len(self.sent):
            try:
                message = self._consumer.receive(200)
            except Timeout:
                continue
            self._consumer.acknowledge(message)
            self.got.append(message)

    def wait_for_more(self) -> None:
        """Wait until more messages are confirmed."""
        count = len(self.sent)
        wait_until(lambda: len(self.sent) > count + MORE, timeout_s=60, what="messages are published")

    def check(self) -> None:
        """End, and look at the log and at what was given."""
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_MS / 1000)
            assert not thread.is_alive()
        reader = self._broker.client().create_reader(self._topic, MessageId.earliest)
        stored = [reader.read_next(WAIT_MS) for _ in self.sent]
        assert [(message.data(), message.message_id()) for message in stored] == self.sent
        for key in range(5):
            of_key = [int(m.data()) for m in self.got if m.partition_key() == f"k{key}"]
            first = sorted({number: at for at, number in reversed(list(enumerate(of_key)))}.items())
            assert [at for _, at in first] == sorted(at for _, at in first)


def test_a_lost_node_is_taken_over_under_load(three_nodes: Broker) -> None:
    broker = three_nodes
    topic = next(each for each in iter(broker.topic, "") if broker.cluster.store_of(each) == FIRST)
    work = Work(broker, topic)
    work.wait_for_more()
    shutil.rmtree(broker.cluster.lose_node(FIRST))
    wait_until(lambda: broker.cluster.store_of(topic) != FIRST, timeout_s=60, what="taken over")
    work.wait_for_more()
    work.check()


def test_the_node_of_the_catalog_is_lost_under_load(three_nodes: Broker) -> None:
    broker = three_nodes
    topic = next(each for each in iter(broker.topic, "") if broker.cluster.store_of(each) == "stub")
    beside = next(each for each in iter(broker.topic, "") if broker.cluster.store_of(each) == SECOND)
    works = [Work(broker, each) for each in (topic, beside)]
    for work in works:
        work.wait_for_more()
    shutil.rmtree(broker.cluster.lose_node(HOST))
    broker.cluster.begin_controller(SECOND)
    wait_until(lambda: broker.cluster.store_of(topic) != "stub", timeout_s=60, what="taken over")
    for work in works:
        work.wait_for_more()
        work.check()
