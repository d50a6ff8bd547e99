"""Decides which producers may be at a partition together, by their access modes (ADR 0037).

Pure. A producer that gets the topic for itself gets a higher topic epoch with it. The epoch is durable before
that producer is answered, so one that was evicted while nobody could reach it is recognised by its lower one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint
from pulsar_ray.errors import ProducerBusy, ProducerFenced
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.session.requests import NO_EPOCH, OpenProducer
from pulsar_ray.session.session_table import Session


class Waiting(NamedTuple):
    """A producer that waits until it can have the topic for itself."""

    session: Session
    request: OpenProducer


class Admitted(NamedTuple):
    """The producer may open, once those to evict are gone."""

    epoch: int
    """The topic epoch that is the producer's own; NO_EPOCH if it shares the topic."""
    evicted: Collection[ProducerEndpoint] = ()


class TopicAccess:
    """Which producer has the partition for itself, and which wait for that, in order.

    `is_awaited`: the partition was restarted while a producer had it for itself, and that may come back.
    """

    def __init__(self, epoch: int, *, is_awaited: bool) -> None:
        self.epoch = epoch
        self.is_awaited = is_awaited
        self.holder: int | None = None
        """The incarnation of the producer that has the partition for itself."""
        self.waiting: list[Waiting] = []

    def decide(self, request: OpenProducer, present: Collection[ProducerEndpoint]) -> Admitted | None:
        """Tell whether a producer may open now, beside those that are `present`.

        None: it has to wait. Raises ProducerBusy or ProducerFenced.
        """
        if NO_EPOCH < request.topic_epoch < self.epoch:
            raise self._fenced()
        own = (request.incarnation, request.replaces_incarnation)
        others = [producer for producer in present if producer.incarnation not in own]
        if len(others) < len(present):
            # It is there already: an answer was lost, or its connection was.
            return Admitted(self.epoch if self.holder in own else NO_EPOCH)
        mode = ProducerAccessMode(request.access_mode)
        if mode == ProducerAccessMode.Shared:
            return self._decide_shared(request)
        if request.topic_epoch > NO_EPOCH:
            if others and mode != ProducerAccessMode.ExclusiveWithFencing:
                raise self._fenced()
            return Admitted(request.topic_epoch, others)
        if mode == ProducerAccessMode.ExclusiveWithFencing:
            return Admitted(self.epoch + 1, others)
        if mode == ProducerAccessMode.WaitForExclusive:
            ahead = any(waiting.request.incarnation != request.incarnation for waiting in self.waiting)
            return None if others or ahead or self.is_awaited else Admitted(self.epoch + 1)
        if others or self.waiting:
            raise ProducerFenced(
                f"the topic has {len(others)} producers and {len(self.waiting)} that wait to have it for "
                "themselves: use WaitForExclusive to wait for it, or ExclusiveWithFencing to take it"
            )
        return Admitted(self.epoch + 1)

    def _decide_shared(self, request: OpenProducer) -> Admitted:
        if self.holder is None and not self.is_awaited and (request.was_open or not self.waiting):
            return Admitted(NO_EPOCH)
        if request.was_open:
            raise self._fenced()
        raise ProducerBusy(
            "a producer has the topic for itself, or waits for that: try again when it has left, or take the "
            "topic with ExclusiveWithFencing"
        )

    def _fenced(self) -> ProducerFenced:
        return ProducerFenced(
            f"another producer has the topic for itself since topic epoch {self.epoch}: this one is evicted; "
            "create another producer to go on"
        )

    def take(self, incarnation: int, epoch: int) -> None:
        """Give the partition to one producer."""
        self.holder, self.epoch = incarnation, max(self.epoch, epoch)
        self.is_awaited = False

    def release(self, incarnation: int) -> bool:
        """Take note that a producer is gone; returns whether it had the partition for itself."""
        if self.holder != incarnation:
            return False
        self.holder = None
        return True

    # ---- those that wait

    def wait(self, session: Session, request: OpenProducer) -> None:
        """Queue a producer; one that asks again keeps its place."""
        for place, waiting in enumerate(self.waiting):
            if waiting.request.incarnation == request.incarnation:
                self.waiting[place] = Waiting(session, request)
                return
        self.waiting.append(Waiting(session, request))

    def stop_waiting(self, session: Session, producer_id: int | None = None) -> None:
        """Take out a producer, or all producers of a session."""
        self.waiting = [
            waiting
            for waiting in self.waiting
            if waiting.session is not session or producer_id not in (None, waiting.request.producer_id)
        ]

    def take_waiting(self) -> list[Waiting]:
        """Take out all."""
        waiting, self.waiting = self.waiting, []
        return waiting
