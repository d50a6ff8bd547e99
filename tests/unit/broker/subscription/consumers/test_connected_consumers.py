"""The consumers that are connected to a subscription, and what is sent to them when."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import pytest

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers, ConsumerEndpoint
from pulsar_ray.dispatch.grant import DropQueue
from pulsar_ray.errors import BrokerMetadataError
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import OpenConsumer, Reset, decode_request
from pulsar_ray.session.session_table import Session


class Sender:
    """Notes what it is to send."""

    has_unsent = False

    def __init__(self) -> None:
        self.sent: list[tuple[Any, int]] = []
        self.dropped_below = self.is_ended = 0

    def send(self, grants: Any, generation: int) -> None:
        self.sent.append((list(grants), generation))

    def drop_below(self, generation: int) -> None:
        self.dropped_below = generation

    def end(self) -> None:
        self.is_ended += 1


class Carrier:
    """Notes the resets that are sent over it."""

    kind = "test"
    unsent_bytes = 0
    is_peer_stopped = False

    def __init__(self) -> None:
        self.resets: list[Reset] = []

    def send(self, buffers: Any) -> None:
        request = decode_request(decode_packet(b"".join(bytes(buffer) for buffer in buffers)))
        assert isinstance(request, Reset)
        self.resets.append(request)

    def close(self, error: Any = None) -> None: ...

    def retain(self, count: int) -> None: ...

    async def drained(self) -> None: ...

    def release(self, count: int) -> None: ...

    def hold_reading(self, *, held: bool) -> None: ...


def opened(
    incarnation: int, consumer_id: int = 1, numbering: int = 5
) -> tuple[ConsumerEndpoint, Sender, Carrier]:
    session, carrier, sender = Session(1, "client", 0), Carrier(), Sender()
    session.carry_by(carrier)
    request = OpenConsumer(
        1, consumer_id, "c", incarnation, 1, 0, False, True, 0, 0, (), None, "s", 0, properties={"a": "b"}
    )
    return ConsumerEndpoint("s", session, request, numbering, sender), sender, carrier


def test_grants_wait_until_the_consumer_is_open_behind_what_it_gets_again() -> None:
    endpoint, sender, _ = opened(7)
    grants: Any = ["early"]
    endpoint.deliver(grants, 1)
    assert endpoint.has_unsent
    assert not endpoint.is_on_carrier
    again: Any = ["again"]
    endpoint.open(again, 1)
    late: Any = ["late"]
    endpoint.deliver(late, 2)
    assert sender.sent == [(["again"], 1), (["early"], 1), (["late"], 2)]
    assert endpoint.is_on_carrier


def test_a_dropped_queue_takes_early_grants_of_lower_generations_with_it() -> None:
    endpoint, sender, carrier = opened(7)
    old: Any = ["old"]
    new: Any = ["new"]
    endpoint.deliver(old, 1)
    endpoint.deliver(new, 2)
    endpoint.drop_queue(DropQueue(7, 2, 9, 40))
    endpoint.open([], 2)
    assert sender.sent == [([], 2), (["new"], 2)]
    assert sender.dropped_below == 2
    (reset,) = carrier.resets
    assert (reset.generation, reset.last_number, reset.granted, reset.is_seek) == (2, 9, 40, False)


def test_a_consumer_is_notified_once_whether_it_is_active() -> None:
    endpoint, _, carrier = opened(7)
    endpoint.notify_active(True, 1)
    assert not carrier.resets, "it is not open yet"
    endpoint.open([], 1)
    for is_active in (True, True, False):
        endpoint.notify_active(is_active, 1)
    assert [reset.is_active for reset in carrier.resets] == [True, False]


def test_a_numbering_is_kept_while_the_consumer_is_known_and_rises_with_the_epoch() -> None:
    consumers = ConnectedConsumers(3)
    first = consumers.numbering(7, is_known=False)
    consumers.put(opened(7, numbering=first)[0])
    assert consumers.numbering(7, is_known=True) == first
    assert consumers.numbering(7, is_known=False) > first
    assert consumers.numbering(8, is_known=False) < ConnectedConsumers(4).numbering(7, is_known=False)


def test_nothing_is_kept_of_consumers_that_were_refused() -> None:
    consumers = ConnectedConsumers(3)
    for incarnation in range(100):
        consumers.numbering(incarnation, is_known=False)
    assert not [kept for kept in (consumers, *vars(consumers).values()) if isinstance(kept, Sized) and kept]


def test_a_new_endpoint_takes_the_place_of_the_former_one() -> None:
    consumers = ConnectedConsumers(1)
    former, sender, _ = opened(7)
    latter, _, _ = opened(7)
    for endpoint in (former, latter):
        consumers.put(endpoint)
    assert sender.is_ended == 1
    assert latter.session.endpoints == {1: latter}
    assert not consumers.remove(former)
    assert consumers.remove(latter)
    assert not consumers


def test_only_consumers_that_are_connected_drop_their_queues() -> None:
    consumers = ConnectedConsumers(1)
    endpoint, sender, _ = opened(7)
    consumers.put(endpoint)
    consumers.drop_queues([DropQueue(6, 4, 0, 0), DropQueue(7, 5, 0, 0)])
    assert sender.dropped_below == 5


def test_a_consumer_beside_others_is_not_the_sole_one() -> None:
    consumers = ConnectedConsumers(1)
    one, _, _ = opened(7)
    other, _, _ = opened(8)
    consumers.put(one)
    consumers.check_sole(one, "'s' of t")
    assert consumers.sessions_beside(one.session) == []
    consumers.put(other)
    assert consumers.sessions_beside(one.session) == [other.session]
    with pytest.raises(BrokerMetadataError, match=rf"\({other.name}\) are connected to 's' of t"):
        consumers.check_sole(one, "'s' of t")
