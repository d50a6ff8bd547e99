"""A client that was let in and says what makes no sense loses its connection at most; the actor serves on."""

from __future__ import annotations

import random
import secrets
from functools import partial
from typing import Any

import pytest

from pulsar_ray import ConsumerType, MessageId
from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.client.client import Client
from pulsar_ray.errors import MessageTooBig, ProtocolError, PulsarException, Timeout
from pulsar_ray.format.payload import encode_single
from pulsar_ray.lane.address import UnixAddress
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.handshake import HelloFields
from pulsar_ray.session.packet import Packet, encode_packet
from pulsar_ray.session.requests import (
    PROTOCOL_VERSION,
    TYPE_OF,
    Credit,
    OpenConsumer,
    OpenProducer,
    Ping,
    Pong,
    encode_request,
)
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.cluster import AttachReply
from tests.conformance.broker import Broker, numbers, values
from tests.conformance.malformed import ENDPOINT, Nonsense, of_any_types
from tests.conformance.non_persistent import new_topic

REQUESTS = 200
TOO_LARGE = bytes(5 * 1024 * 1024 + 1)
PARTITION, DISPATCHER, READERS = "partition", "dispatcher", "readers"


@pytest.fixture
def rng() -> random.Random:
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    return random.Random(seed)


class Vandal:
    """A client of its own making, attached as anybody is who can call the actor."""

    def __init__(self, broker: Broker, address: str, kind: str, name: str) -> None:
        self._broker = broker
        self._address = address
        self._kind = kind
        self._name = name
        self._attempt = 0
        self._packets: list[Packet] = []
        self.errors: list[PulsarException] = []
        self._lane: LaneConnection | None = None

    def on_packets(self, _connection: LaneConnection, packets: list[Packet]) -> None:
        self._packets += packets

    def on_lost(self, _connection: LaneConnection, error: PulsarException) -> None:
        self.errors.append(error)
        self._lane = None

    def _connected(self) -> LaneConnection:
        if self._lane is None:
            self._attempt += 1
            reply: AttachReply = self._broker.cluster.attach(
                self._address, self._name, want_tcp=False, attempt=self._attempt, timeout_s=20
            )
            assert reply.unix_path is not None
            hello = HelloFields(PROTOCOL_VERSION, reply.session_id, reply.token, reply.attachment)
            self._lane = LaneConnection.connect(UnixAddress(reply.unix_path), hello, self)
            self._lane.send(encode_request(self.opening()))
        return self._lane

    def opening(self) -> Any:
        if self._kind == PARTITION:
            return OpenProducer(1, ENDPOINT, self._name, 99, 0, 0, 0, False)
        start = {"target": "earliest", "inclusive": True} if self._kind == READERS else None
        subscription = self._name if self._kind == READERS else "s"
        fields: Any = (
            *(1, ENDPOINT, self._name, 99, int(ConsumerType.Shared), 0, True, False, 0, 0, (), start),
            *(subscription, 0),
        )
        return OpenConsumer(*fields)

    def say(self, packet: list[Any]) -> None:
        """Send it, and wait until the actor has dealt with it in one way or the other."""
        lane, lost = self._connected(), len(self.errors)
        self._packets.clear()
        try:
            lane.send(packet)
            lane.send(encode_request(Ping(1)))
        except PulsarException:
            pass
        wait_until(lambda: len(self.errors) > lost or self._has_answered, what="an answer, or the end")

    @property
    def _has_answered(self) -> bool:
        return any(packet.type == TYPE_OF[Pong] for packet in list(self._packets))

    def leave(self) -> None:
        if self._lane is not None:
            self._lane.close()


def reported(broker: Broker, address: str) -> bytes:
    """What an actor tells the metrics of its node."""
    actor = broker.cluster.actors.last(address)
    server: Any = actor.server
    report: ActorReport = actor.result(actor.submit(server.report), 20)
    return report.encode()


@pytest.mark.parametrize("transport", ["socket"], indirect=True)
@pytest.mark.parametrize("kind", [PARTITION, DISPATCHER, READERS])
def test_no_actor_dies_of_what_a_client_says(
    broker: Broker, client: Client, kind: str, rng: random.Random
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    client.subscribe(topic, "s", ConsumerType.Shared).close()
    kept = client.subscribe(topic, "kept")
    reader = client.create_reader(topic, MessageId.earliest)
    sent = numbers(0, 20)
    ids = [producer.send(value) for value in sent]
    signs = {PARTITION: "", DISPATCHER: " -> s", READERS: " => "}
    (address,) = [
        a
        for a in broker.cluster.addresses
        if (signs[kind] in a if signs[kind] else " -> " not in a and " => " not in a)
    ]
    vandal = Vandal(broker, address, kind, "vandal")
    nonsense = Nonsense(rng, ids[0].ledger_id())
    for _ in range(REQUESTS):
        vandal.say(encode_packet(*of_any_types(rng)))
        vandal.say(encode_request(nonsense.request()))
    vandal.leave()
    assert ActorReport.decode(reported(broker, address)).kind
    assert broker.cluster.fatal_errors == []
    assert any(isinstance(error, ProtocolError) for error in vandal.errors)
    producer.send(b"after")
    assert values(kept, 21) == [*sent, b"after"]
    assert [reader.read_next(20_000).data() for _ in range(21)] == [*sent, b"after"]
    assert broker.stored(topic) == [*sent, b"after"]


@pytest.mark.parametrize("transport", ["socket"], indirect=True)
@pytest.mark.parametrize("credit", [2**63 - 1, 2**63, 2**64 - 1])
def test_no_credit_ends_the_metrics_of_a_subscription(broker: Broker, client: Client, credit: int) -> None:
    topic = broker.topic()
    client.subscribe(topic, "s", ConsumerType.Shared).close()
    (address,) = [address for address in broker.cluster.addresses if " -> s" in address]
    vandals = [Vandal(broker, address, DISPATCHER, f"vandal-{number}") for number in range(4)]
    for number, vandal in enumerate(vandals):
        vandal.say(encode_request(vandal.opening()._replace(incarnation=100 + number)))
        vandal.say(encode_request(Credit(ENDPOINT, credit, 0, 0)))
    assert ActorReport.decode(reported(broker, address)).subscription == "s"
    assert [bool(vandal.errors) for vandal in vandals] == [credit >= 2**63] * 4
    for vandal in vandals:
        vandal.leave()


@pytest.mark.parametrize("transport", ["socket"], indirect=True)
@pytest.mark.parametrize("kind", [PARTITION, DISPATCHER])
def test_nor_do_actors_that_store_nothing(
    broker: Broker, client: Client, kind: str, rng: random.Random
) -> None:
    topic = new_topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    (address,) = [a for a in broker.cluster.addresses if (" -> s" in a) == (kind == DISPATCHER)]
    vandal = Vandal(broker, address, kind, "vandal")
    nonsense = Nonsense(rng, 0)
    for _ in range(REQUESTS):
        vandal.say(encode_packet(*of_any_types(rng)))
        vandal.say(encode_request(nonsense.request()))
    vandal.leave()
    assert broker.cluster.fatal_errors == []
    assert vandal.errors

    def arrives() -> bool:
        producer.send(b"after")
        try:
            return consumer.receive(200).data() == b"after"
        except Timeout:
            return False

    wait_until(arrives, what="what is published afterwards")


@pytest.mark.parametrize("transport", ["ray"], indirect=True)
def test_nor_of_what_comes_through_the_tunnel(broker: Broker, client: Client, rng: random.Random) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"before")
    actor = broker.cluster.partition(topic)
    refused = 0
    for number in range(50):
        reply = broker.cluster.attach(topic, f"vandal-{number}", want_tcp=False, attempt=1, timeout_s=20)
        packet = b"".join(encode_packet(*of_any_types(rng)))
        arguments: Any = (reply.session_id, reply.attachment, reply.token, 0, partial(list, [(1, packet)]))
        call = actor.submit(partial(actor.host.exchange, *arguments))
        try:
            actor.result(call, 20)
        except PulsarException:
            refused += 1
    assert refused
    producer.send(b"after")
    assert broker.stored(topic) == [b"before", b"after"]


def test_the_broker_refuses_what_is_too_large_also_of_a_client_that_does_not_look(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    outcomes: list[Any] = []

    def encode(incarnation: int, entry_seq: int, _name: str, first_id: int) -> list[Any]:
        return encode_single(
            TOO_LARGE,
            incarnation=incarnation,
            entry_seq=entry_seq,
            sequence_id=first_id,
            publish_time_ms=1,
        )

    producer._partitions[0].queue.add_block(
        encode, entries=1, messages=1, size=len(TOO_LARGE), done=lambda *outcome: outcomes.append(outcome)
    )
    wait_until(lambda: outcomes, what="the broker's answer")
    ((ledger_id, entry_id, error, stored_before),) = outcomes
    assert (ledger_id, entry_id, stored_before) == (-1, -1, 0)
    assert isinstance(error, MessageTooBig)
    assert "max_message_size is 5242880" in error.text
    producer.send(b"after")
    assert broker.stored(topic) == [b"after"]
