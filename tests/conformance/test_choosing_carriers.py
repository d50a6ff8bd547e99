"""Which carrier a client takes: the one it was told to, or the best that can be had."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.errors import ConnectError, UnsupportedVersionError
from pulsar_ray.session.requests import PROTOCOL_VERSION
from pulsar_ray.transport.cluster import AttachReply
from tests.conformance.broker import EARLIEST, Broker, values

Connect = Callable[..., Client]


@pytest.fixture
def connect(broker: Broker) -> Iterator[Connect]:
    """A client that takes the carrier it is told to."""
    clients: list[Client] = []

    def make(transport: str, **arguments: object) -> Client:
        clients.append(Client._on(broker.cluster, transport=transport, **arguments))
        return clients[-1]

    yield make
    for client in clients:
        client.shutdown()


def carrier(client: Client, topic: str) -> str:
    """What a client sends and receives a message over."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer.send(b"x")
    assert values(consumer, 1) == [b"x"]
    kinds = {link.carrier.kind if link.carrier else "none" for link in client._links}
    producer.close()
    consumer.close()
    (kind,) = kinds
    return kind


@pytest.mark.parametrize("transport", ["socket"], indirect=True)
@pytest.mark.parametrize(
    ("wanted", "taken"), [("auto", "socket"), ("socket", "socket"), ("tcp", "tcp"), ("ray", "ray")]
)
def test_a_client_takes_what_it_is_told_to(broker: Broker, connect: Connect, wanted: str, taken: str) -> None:
    assert carrier(connect(wanted), broker.topic()) == taken


@pytest.mark.parametrize("transport", ["ray"], indirect=True)
def test_where_no_lane_can_be_had_auto_takes_calls_and_the_others_say_so(
    broker: Broker, connect: Connect
) -> None:
    topic = broker.topic()
    assert carrier(connect("auto"), topic) == "ray"
    for forced in ("socket", "tcp"):
        client = connect(forced, operation_timeout_seconds=2)
        with pytest.raises(
            ConnectError, match=f"no {forced} lane here; transport='auto' takes what there is"
        ):
            client.create_producer(topic)


def elsewhere(reply: AttachReply) -> AttachReply:
    return dataclasses.replace(reply, unix_path="/no/such/place/lane")


def closed_ports(reply: AttachReply) -> AttachReply:
    return dataclasses.replace(elsewhere(reply), tcp_address=("127.0.0.1", 1) if reply.tcp_address else None)


@pytest.mark.parametrize("transport", ["socket"], indirect=True)
@pytest.mark.parametrize(("edit", "taken"), [(elsewhere, "tcp"), (closed_ports, "ray")])
def test_a_socket_that_cannot_be_seen_is_another_nodes(
    broker: Broker, connect: Connect, edit: Callable[[AttachReply], AttachReply], taken: str
) -> None:
    broker.cluster.edit_attach = edit
    assert carrier(connect("auto"), broker.topic()) == taken


@pytest.mark.parametrize("transport", ["socket"], indirect=True)
def test_another_protocol_version_is_refused_with_what_to_do(broker: Broker) -> None:
    actor = broker.cluster.partition(broker.topic())
    for version in (PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1):
        with pytest.raises(
            UnsupportedVersionError, match="same pulsar-ray everywhere, then `pulsar-ray stop`"
        ):
            actor.attach("of another release", version, False, 1, 20.0)
