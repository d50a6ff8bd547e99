"""Producers that may come back after their partition's restart, and others that wait for them.

Pure (ADR 0103).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pulsar_ray.broker.partition.publishing.topic_access import Waiting
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.session.requests import OpenProducer
from pulsar_ray.session.session_table import Session


class KnownProducer(NamedTuple):
    """A connected producer, as its client knows it."""

    incarnation: int
    client_id: str
    producer_id: int
    """Unique in the client."""


class ReturningProducers:
    """Keeps the places of producers that were connected before a restart.

    `known` has them by name. A place is a name, one of a limited number, and sharing the topic:
    nobody has it for himself meanwhile, unless he evicts all others.
    """

    def __init__(self, known: Mapping[str, KnownProducer]) -> None:
        self._awaited = dict(known)
        self._waiting: dict[tuple[Session, int], OpenProducer] = {}

    @property
    def are_awaited(self) -> bool:
        """Whether one of them may still come back."""
        return bool(self._awaited)

    @property
    def waiting(self) -> int:
        """How many producers wait for them."""
        return len(self._waiting)

    def keeps_out(self, request: OpenProducer, present: Collection[str], limit: int) -> bool:
        """Whether a producer has to wait, beside those of these names that are `present`.

        `limit` is how many the topic may have, 0 for any number. A producer that was open before never
        waits: one that gave up its messages meanwhile comes back with another incarnation.
        """
        if request.was_open or not self._awaited:
            return False
        mode = ProducerAccessMode(request.access_mode)
        if mode == ProducerAccessMode.ExclusiveWithFencing:
            # It evicts the others anyway, and those that come back later are fenced.
            return False
        own = (request.incarnation, request.replaces_incarnation)
        others = {name for name, known in self._awaited.items() if known.incarnation not in own}
        if request.name in others:
            return True
        if request.name in present or len(others) < len(self._awaited):
            # One of them, whose answer was lost with its partition, is known by its incarnation.
            return False
        if others and mode in (ProducerAccessMode.Exclusive, ProducerAccessMode.WaitForExclusive):
            return True
        return len(present) < limit <= len(others.union(present))

    def came_back(self, name: str) -> bool:
        """Wait for a producer no more; returns whether it was awaited."""
        return self._awaited.pop(name, None) is not None

    def left(self, client_id: str, producer_id: int) -> str | None:
        """Wait no more for a producer that was closed meanwhile.

        Returns its name if it was awaited.
        """
        for name, known in self._awaited.items():
            if (known.client_id, known.producer_id) == (client_id, producer_id):
                del self._awaited[name]
                return name
        return None

    def stop_awaiting(self) -> list[str]:
        """Wait for nobody any more: the grace period is over.

        Returns the names of those that stayed away.
        """
        missing = list(self._awaited)
        self._awaited.clear()
        return missing

    # ---- those that wait

    def wait(self, session: Session, request: OpenProducer) -> None:
        """Let a producer wait; one that asks again keeps its place."""
        self._waiting[session, request.producer_id] = request

    def leave(self, session: Session, producer_id: int | None = None) -> None:
        """Take out a producer that waits, or all of a session."""
        for waiting in list(self._waiting):
            if waiting[0] is session and producer_id in (None, waiting[1]):
                del self._waiting[waiting]

    def take_waiting(self) -> list[Waiting]:
        """Take out all, in their order."""
        waiting = [Waiting(session, request) for (session, _), request in self._waiting.items()]
        self._waiting.clear()
        return waiting
