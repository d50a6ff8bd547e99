"""Actors and clients killed or frozen at chosen places: what was confirmed stays, nothing comes twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import ray
from packaging.version import Version

import pulsar_ray
from pulsar_ray import ConsumerType
from pulsar_ray.errors import SessionLost
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport import actor_attacher, endpoint, ray_connection
from pulsar_ray.transport.actor_names import CONTROLLER
from pulsar_ray.transport.cluster import SubscriptionRequest
from tests.faults import kill_points
from tests.faults.journal import Id, id_of
from tests.faults.processes import ClientProcess
from tests.faults.reading import (
    numbered,
    payloads,
    read_all,
    receive_acknowledged,
    receive_quiet,
    subscribe,
)
from tests.running_broker import Broker, dispatcher_actor, partition_actor

DEADLINE_S = 60.0
# The tunnel's own logic is shown without Ray, by tests of conformance that kill the same actors over it.
ONE_CARRIER = ("auto", pytest.param("ray", marks=pytest.mark.long))
ENDS_STOPPED = pytest.mark.skipif(
    Version(ray.__version__) < Version("2.53"),
    reason="before Ray 2.53 ray.kill does not end a process that is stopped",
)


class Sent:
    """Receipts of asynchronous sends."""

    def __init__(self) -> None:
        self.ids: dict[bytes, Id] = {}
        self.errors: list[Any] = []

    def send(self, producer: pulsar_ray.Producer, values: list[bytes]) -> None:
        for value in values:
            producer.send_async(value, self._callback(value))

    def _callback(self, value: bytes) -> Callable[[Any, Any], None]:
        def callback(result: Any, message_id: Any) -> None:
            if result == pulsar_ray.Result.Ok:
                self.ids[value] = id_of(message_id)
            else:
                self.errors.append(result)

        return callback

    def wait(self, count: int) -> None:
        wait_until(lambda: len(self.ids) + len(self.errors) >= count, DEADLINE_S, f"{count} receipts")
        assert not self.errors


@pytest.mark.parametrize("carrier", ONE_CARRIER)
@pytest.mark.parametrize("place", [kill_points.before_receipts, kill_points.inside_write])
def test_partition_dies_in_a_commit(
    broker: Broker, topic: str, carrier: str, place: kill_points.Installer
) -> None:
    client = broker.client(transport=carrier)
    producer = client.create_producer(topic)
    sent = Sent()
    sent.send(producer, numbered(20))
    sent.wait(20)
    broker.run_in(partition_actor(topic), place)
    sent.send(producer, numbered(50, 20))
    sent.wait(70)
    sent.send(producer, numbered(5, 70))
    sent.wait(75)
    stored = read_all(client, topic)
    assert payloads(stored) == numbered(75)
    assert {message.payload: message.place for message in stored} == sent.ids


@pytest.mark.parametrize("following", [[], [b"1"]])
def test_lost_refusal_is_no_receipt(broker: Broker, topic: str, following: list[bytes]) -> None:
    client = broker.client()
    producer = client.create_producer(topic)
    producer.send(b"0")
    broker.run_in(partition_actor(topic), kill_points.refuse_once_in_silence)
    sent = Sent()
    sent.send(producer, [b"refused", *following])
    stored = [b"0", *following]
    wait_until(
        lambda: broker.stats(partition_actor(topic))["msgInCounter"] == len(stored), DEADLINE_S, "the rest"
    )
    for link in client._links:
        connection: Any = link.carrier
        connection.lose(SessionLost("cut by the test"))
    wait_until(lambda: len(sent.ids) + len(sent.errors) == 1 + len(following), DEADLINE_S, "all answers")
    assert len(sent.errors) == 1
    assert list(sent.ids) == following
    assert payloads(read_all(client, topic)) == stored


@pytest.mark.parametrize("carrier", ONE_CARRIER)
def test_dispatcher_dies_with_messages_at_its_consumer(broker: Broker, topic: str, carrier: str) -> None:
    client = broker.client(transport=carrier)
    consumer = subscribe(client, topic)
    client.create_producer(topic).send_many(numbered(100))
    seen = receive_acknowledged(consumer, 30)
    unacknowledged = [consumer.receive(60_000) for _ in range(10)]
    broker.kill(dispatcher_actor(topic, "sub"))
    seen += [message.data() for message in unacknowledged]
    client.create_producer(topic).send_many(numbered(50, 100))
    seen += receive_acknowledged(consumer, 110)
    for message in unacknowledged:
        consumer.acknowledge(message)
    assert seen == numbered(150)
    assert receive_quiet(consumer) == []
    consumer.close()
    assert receive_quiet(subscribe(client, topic)) == []


@pytest.mark.parametrize("carrier", ONE_CARRIER)
@pytest.mark.parametrize(
    ("place", "receipts"),
    [
        (kill_points.on_acknowledgment, True),
        (kill_points.before_ack_receipts, False),
        pytest.param(kill_points.on_acknowledgment, False, marks=pytest.mark.long),
        pytest.param(kill_points.before_ack_receipts, True, marks=pytest.mark.long),
        pytest.param(kill_points.never_flush, False, marks=pytest.mark.long),
        pytest.param(kill_points.never_flush, True, marks=pytest.mark.long),
    ],
)
def test_acknowledgments_outlive_their_dispatcher(
    broker: Broker, topic: str, carrier: str, place: kill_points.Installer, receipts: bool
) -> None:
    client = broker.client(transport=carrier)
    consumer = subscribe(client, topic, ack_receipt_enabled=receipts)
    producer = client.create_producer(topic)
    producer.send_many(numbered(60))
    seen = receive_acknowledged(consumer, 20)
    dispatcher = dispatcher_actor(topic, "sub")
    broker.run_in(dispatcher, place)
    kill = threading.Thread(target=broker.kill, args=(dispatcher,))
    if place is kill_points.never_flush and receipts:
        kill.start()  # its acknowledgments wait until it is dead
    seen += receive_acknowledged(consumer, 20)
    if place is kill_points.never_flush and not receipts:
        kill.start()
    producer.send_many(numbered(10, 60))
    seen += receive_acknowledged(consumer, 30)
    assert seen == numbered(70)
    assert receive_quiet(consumer) == []
    consumer.close()
    assert receive_quiet(subscribe(client, topic)) == []


@pytest.mark.parametrize("carrier", ONE_CARRIER)
def test_shared_consumers_keep_what_they_have(broker: Broker, topic: str, carrier: str) -> None:
    clients = [broker.client(transport=carrier), broker.client(transport=carrier)]
    consumers = [
        subscribe(client, topic, consumer_type=ConsumerType.Shared, receiver_queue_size=20)
        for client in clients
    ]
    producer = clients[0].create_producer(topic)
    sent = Sent()
    sent.send(producer, numbered(200))
    sent.wait(200)
    seen = [data for consumer in consumers for data in receive_acknowledged(consumer, 10)]
    held = [consumer.receive(60_000) for consumer in consumers for _ in range(5)]
    broker.kill(dispatcher_actor(topic, "sub"))
    seen += [message.data() for message in held]
    wait_until(lambda: receive_any(consumers, seen) >= 200, DEADLINE_S, "the rest")
    assert sorted(seen) == sorted(numbered(200))
    assert receive_quiet(consumers[0]) == []
    assert receive_quiet(consumers[1]) == []


def receive_any(consumers: list[pulsar_ray.Consumer], seen: list[bytes]) -> int:
    """Add to `seen` what each consumer has now, acknowledged; how many that are by now."""
    for consumer in consumers:
        try:
            while True:
                message = consumer.receive(50)
                consumer.acknowledge(message)
                seen.append(message.data())
        except pulsar_ray.Timeout:
            continue
    return len(seen)


@pytest.mark.parametrize(
    ("signal_name", "carrier"),
    [
        ("kill", "auto"),
        ("freeze", "ray"),
        pytest.param("kill", "ray", marks=pytest.mark.long),
        pytest.param("freeze", "auto", marks=pytest.mark.long),
    ],
)
def test_controller_and_store_are_off_the_data_path(
    broker: Broker, topic: str, carrier: str, signal_name: str
) -> None:
    client = broker.client(transport=carrier)
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"0")
    assert receive_acknowledged(consumer, 1) == [b"0"]
    stopped = [getattr(broker, signal_name)(name) for name in (CONTROLLER, broker.store())]
    try:
        for number in range(1, 200):
            producer.send(b"%d" % number)
            assert receive_acknowledged(consumer, 1, 5000) == [b"%d" % number]
    finally:
        for pid in stopped:
            broker.thaw(pid)
    assert payloads(read_all(client, topic)) == numbered(200)


@pytest.mark.parametrize(
    "signal_name", ["kill", pytest.param("freeze", marks=[ENDS_STOPPED, pytest.mark.long])]
)
def test_new_client_finds_a_broker_that_is_restarting(broker: Broker, topic: str, signal_name: str) -> None:
    broker.client().create_producer(topic).send(b"0")
    stopped = [getattr(broker, signal_name)(broker.store()), broker.kill(CONTROLLER)]
    try:
        client = broker.client()
        client.operation_timeout_s = 2 * DEADLINE_S
        consumer = subscribe(client, topic)
        client.create_producer(topic).send(b"1")
        assert receive_acknowledged(consumer, 2) == [b"0", b"1"]
    finally:
        broker.thaw(stopped[0])


def test_lane_comes_back_without_the_controller(broker: Broker, topic: str) -> None:
    client = broker.client()
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    producer.send(b"0")
    assert receive_acknowledged(consumer, 1) == [b"0"]
    controller = broker.freeze(CONTROLLER)
    try:
        for number in range(1, 5):
            for link in client._links:
                connection: Any = link.carrier
                connection.lose(SessionLost("cut by the test"))
            producer.send(b"%d" % number)
            assert receive_acknowledged(consumer, 1) == [b"%d" % number]
        # Long before anybody finds it dead, nobody has asked it.
        assert psutil.Process(controller).status() == psutil.STATUS_STOPPED
    finally:
        broker.thaw(controller)


@pytest.mark.long
def test_frozen_controller_is_replaced(broker: Broker, topic: str) -> None:
    client = broker.client()
    client.create_producer(topic).send(b"0")
    former = broker.freeze(CONTROLLER)
    try:
        broker.wait_for_other(CONTROLLER, former)
    finally:
        broker.thaw(former)
    consumer = subscribe(client, topic)
    assert receive_acknowledged(consumer, 1) == [b"0"]


@pytest.mark.long
def test_dispatcher_dies_before_it_has_registered_its_subscription(broker: Broker, topic: str) -> None:
    client = broker.client()
    client.create_producer(topic).send(b"0")
    full = TopicName.parse(topic).full
    partition = broker.freeze(partition_actor(topic))
    try:
        request = SubscriptionRequest(full, "sub", durable=True, initial_position="earliest")
        dispatcher = client.cluster.dispatcher(request, DEADLINE_S)
        former = broker.kill(dispatcher)
        broker.wait_for_other(dispatcher, former)
    finally:
        broker.thaw(partition)
    assert receive_acknowledged(subscribe(client, topic), 1) == [b"0"]


@pytest.mark.parametrize("carrier", ["auto", "ray"])
def test_consumer_dies_with_messages(broker: Broker, topic: str, holder: ClientProcess) -> None:
    consumer = subscribe(broker.client(), topic, consumer_type=ConsumerType.Shared)
    assert receive_quiet(consumer) == []
    holder.kill()
    assert sorted(receive_acknowledged(consumer, 100)) == sorted(numbered(100))


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes an actor for silent after 1.5 s instead of 5."""
    monkeypatch.setattr(endpoint, "PING_INTERVAL_S", 0.5)
    monkeypatch.setattr(endpoint, "SILENCE_S", 1.5)
    monkeypatch.setattr(actor_attacher, "ATTACH_TIMEOUT_S", 1.5)
    monkeypatch.setattr(ray_connection, "CALL_TIMEOUT_S", 1.5)


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("who", "carrier"),
    [
        ("partition", "auto"),
        pytest.param("dispatcher", "ray", marks=pytest.mark.long),
        pytest.param("partition", "ray", marks=pytest.mark.long),
        pytest.param("dispatcher", "auto", marks=pytest.mark.long),
    ],
)
def test_frozen_actor_is_replaced(broker: Broker, topic: str, carrier: str, who: str) -> None:
    client = broker.client(transport=carrier)
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic, send_timeout_millis=0)
    producer.send_many(numbered(50))
    seen = receive_acknowledged(consumer, 20)
    name = partition_actor(topic) if who == "partition" else dispatcher_actor(topic, "sub")
    former = broker.freeze(name)
    try:
        producer.send_many(numbered(50, 50))
        seen += receive_acknowledged(consumer, 80)
        broker.wait_for_other(name, former)
    finally:
        broker.thaw(former)
    assert seen == numbered(100)
    assert receive_quiet(consumer) == []
    assert payloads(read_all(client, topic)) == numbered(100)
