"""A subscription of a non-persistent topic and its consumers; the carrier is played here."""

from __future__ import annotations

import asyncio
from typing import Any

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers, ConsumerEndpoint
from pulsar_ray.broker.subscription.non_persistent.passing_subscription import (
    Bodies,
    PassingSender,
    PassingSubscription,
)
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.non_persistent import NonPersistentDispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.requests import (
    Acknowledge,
    ConsumerOpened,
    Done,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    Reset,
    decode_request,
)
from pulsar_ray.session.session_table import Session
from pulsar_ray.testing.manual_clock import ManualClock


class Carrier:
    """Notes what is sent over it."""

    kind = "test"
    unsent_bytes = 0
    is_peer_stopped = False

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, buffers: Any) -> None:
        self.sent.append(decode_request(decode_packet(b"".join(bytes(buffer) for buffer in buffers))))

    def close(self, error: Any = None) -> None: ...

    def retain(self, count: int) -> None: ...

    async def drained(self) -> None: ...

    def release(self, count: int) -> None: ...

    def hold_reading(self, *, held: bool) -> None: ...


class Served:
    """A subscription, and what each of its consumers was sent, by incarnation."""

    def __init__(self, consumer_type: ConsumerType) -> None:
        bodies: Bodies = {}
        settings, clock = DispatchSettings(), ManualClock()
        core = NonPersistentDispatcher(
            settings, topic="non-persistent://public/default/t", now_ms=0, can_take=lambda _: True
        )
        self.carriers: dict[int, Carrier] = {}
        self._type = consumer_type

        def new_endpoint(session: Session, request: OpenConsumer, numbering: int) -> ConsumerEndpoint:
            encoder = DeliverEncoder(request.consumer_id, numbering)
            return ConsumerEndpoint("s", session, request, numbering, PassingSender(session, encoder, bodies))

        self.subscription = PassingSubscription(
            "s", core, ConnectedConsumers(1), new_endpoint, bodies, clock, asyncio.get_running_loop()
        )

    async def open(self, incarnation: int, numbering: int = 0) -> ConsumerOpened:
        session = Session(incarnation, "client", 0)
        self.carriers[incarnation] = Carrier()
        session.carry_by(self.carriers[incarnation])
        opened = await self.subscription.open_consumer(
            session,
            OpenConsumer(
                1,
                1,
                f"c{incarnation}",
                incarnation,
                int(self._type),
                0,
                False,
                False,
                numbering,
                0,
                (),
                None,
                "s",
                0,
                credit=100,
            ),
        )
        await asyncio.sleep(0)  # the consumer is open once its answer has gone
        return opened

    def endpoint(self, incarnation: int) -> ConsumerEndpoint:
        return self.subscription.consumers[incarnation]

    def publish(self, number: int) -> None:
        body = {(1, number): memoryview(b"body")}
        self.subscription.publish([BlockRef(1, 0, 0, 4, number, 1, 1, False)], body)

    def sent(self, incarnation: int, kind: type) -> list[Any]:
        return [request for request in self.carriers[incarnation].sent if isinstance(request, kind)]


def test_requests_about_messages_are_answered_and_bring_nothing() -> None:
    async def run() -> None:
        served = Served(ConsumerType.Exclusive)
        await served.open(7)
        served.publish(0)
        before = served.subscription.stats()
        endpoint, carrier = served.endpoint(7), served.carriers[7]
        delivered = len(carrier.sent)
        for request in (
            Acknowledge(5, 1, ((1, 0, 0),), (), None),
            Acknowledge(0, 1, ((1, 0, 0),), (), None),
            Acknowledge(6, 1, (), (), (1, 0, -1)),
            NegativeAcknowledge(1, ((1, 0, (), 0),), 7, received=1),
            RedeliverUnacknowledged(1, endpoint.numbering, 1, 8),
        ):
            served.subscription.settle(endpoint, request)
        assert carrier.sent[delivered:] == [Done(5), Done(6), Done(7), Done(8)]
        assert served.subscription.stats() == before
        assert before["msgOutCounter"] == 1

    asyncio.run(run())


def test_the_next_failover_consumer_is_notified_and_gets_what_is_published_next() -> None:
    async def run() -> None:
        served = Served(ConsumerType.Failover)
        await served.open(1)
        await served.open(2)
        assert [reset.is_active for reset in served.sent(1, Reset)] == [True]
        assert [reset.is_active for reset in served.sent(2, Reset)] == [False]
        served.publish(0)
        served.subscription.detach(served.endpoint(1), crashed=True)
        assert [reset.is_active for reset in served.sent(2, Reset)] == [False, True]
        assert served.subscription.stats()["activeConsumerName"] == "c2"
        served.publish(1)
        assert [c["msgOutCounter"] for c in served.subscription.stats()["consumers"]] == [1]

    asyncio.run(run())


def test_a_consumer_that_attaches_again_keeps_its_numbering() -> None:
    async def run() -> None:
        served = Served(ConsumerType.Exclusive)
        first = await served.open(7)
        again = await served.open(7, first.numbering)
        assert (first.resumed, again.resumed) == (False, True)
        assert again.numbering == first.numbering
        await served.subscription.close_consumer(served.endpoint(7))
        assert not served.subscription.consumers
        assert (await served.open(7, first.numbering)).numbering > first.numbering, (
            "numbered anew: it was not known any more"
        )

    asyncio.run(run())
