"""Opens a partition's producers by their access modes, and evicts them (ADR 0037).

After a restart those that may come back are awaited (ADR 0103).

Everything runs on the owner loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from pulsar_ray.broker.partition.backlog.backlog_quota import BacklogQuota
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.producer_endpoint import ProducerEndpoint
from pulsar_ray.broker.partition.publishing.producers_note import KnownProducer, ProducersNote
from pulsar_ray.broker.partition.publishing.topic_access import Admitted, TopicAccess, Waiting
from pulsar_ray.broker.partition.publishing.topic_end import terminated
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.errors import (
    ProducerBlockedQuotaExceededError,
    ProducerFenced,
    PulsarException,
    text_naming,
)
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.topic_name import check_user_may_publish
from pulsar_ray.session.requests import NO_EPOCH, Failed, OpenProducer, ProducerOpened, encode_request
from pulsar_ray.session.session_table import Session


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


class ProducerOpening:
    """Answers requests to open, once a topic epoch is durable or it is their turn.

    `opened` is called for each session whose producer opens. After a restart of the partition the producers
    of before, which `note` knows, have `grace_s` to come back, before others get what was theirs. A producer
    is told of what is stored, so that it is answered by `when_durable`.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        producers: ConnectedProducers,
        writer: ManifestWriter,
        host: SessionHost,
        loop: asyncio.AbstractEventLoop,
        opened: Callable[[Session], None],
        grace_s: float,
        quota: BacklogQuota,
        note: ProducersNote,
        when_durable: Callable[[Callable[[], None]], None],
    ) -> None:
        self._ledger = ledger
        self._when_durable = when_durable
        self._producers = producers
        self._writer = writer
        self._host = host
        self._loop = loop
        self._opened = opened
        self._quota = quota
        self._held: dict[tuple[Session, int], OpenProducer] = {}
        """Requests of producers that wait until the backlog has shrunk."""
        held = ledger.changes.topic_epoch
        self._access = TopicAccess(held.epoch, is_awaited=held.is_held)
        self._note = note
        self._returning = ReturningProducers(note.noted)
        self._outlasting = False
        if held.is_held or self._returning.are_awaited:
            loop.call_later(grace_s, self._end_awaiting)

    @property
    def topic_epoch(self) -> int:
        """How often the partition has been taken by one producer for itself; -1 for never."""
        return self._access.epoch

    @property
    def waiting(self) -> int:
        """How many producers wait for others to leave, or to come back after a restart."""
        return len(self._access.waiting) + self._returning.waiting

    @property
    def holds_places(self) -> bool:
        """Whether a producer has the partition for itself, waits for that, or prevents it.

        Where somebody has had it before, others may want it again: those that share it keep them out.
        """
        access = self._access
        if access.holder is not None or access.is_awaited or self.waiting > 0 or self._returning.are_awaited:
            return True
        return access.epoch > NO_EPOCH and bool(self._producers.by_name)

    # --- requests ---------------------------------------------------------------------------------

    def open(self, session: Session, request: OpenProducer) -> None:
        """Answer a request to open, perhaps later."""
        if self._is_held(session, request):
            self._held[session, request.producer_id] = request
        elif not request.was_open and self._quota.room_bytes() <= 0:
            self._quota.decide(partial(self._open_measured, session, session.attachment, request))
        else:
            self._open_beside_others(session, request)

    def _is_held(self, session: Session, request: OpenProducer) -> bool:
        """Whether the producer was held back, and the backlog has not shrunk since."""
        held = self._producers.by_name.get(request.name or "")
        is_held = held is not None and held.is_held and held.session is session
        return is_held and isinstance(self._quota.refusal, ProducerBlockedQuotaExceededError)

    def _open_measured(
        self, session: Session, attachment: int, request: OpenProducer, refusal: PulsarException | None
    ) -> None:
        if session.is_ended or session.attachment != attachment:
            return
        if refusal is not None:
            self._refuse(session, request, refusal)
        else:
            self._open_beside_others(session, request)

    def room_again(self) -> None:
        """Answer the producers that were held back: the backlog has shrunk."""
        held, self._held = self._held, {}
        for (session, _), request in held.items():
            if not session.is_ended:
                self._open_beside_others(session, request)

    @property
    def holds_back(self) -> bool:
        """Whether a producer waits until the backlog has shrunk."""
        return bool(self._held)

    def _open_beside_others(self, session: Session, request: OpenProducer) -> None:
        holders = self._stopped_holders(session, request)
        if holders:
            self._host.spawn(self._open_later(session, request, holders))
        else:
            self._open_now(session, request)

    def _stopped_holders(self, session: Session, request: OpenProducer) -> Sequence[Session]:
        """The processes that keep the producer out, if all of them are stopped."""
        holder = self._producers.holder_beside(session, request.name)
        holders = [] if holder is None else [holder]
        if request.access_mode == ProducerAccessMode.Exclusive and not request.was_open:
            sessions = {producer.session for producer in self._producers.by_name.values()}
            holders = list(sessions - {session}) if session not in sessions else []
        return holders if all(holder.is_stopped for holder in holders) else []

    async def _open_later(self, session: Session, request: OpenProducer, holders: Sequence[Session]) -> None:
        attachment = session.attachment
        await self._host.outlast(holders)
        if not session.is_ended and session.attachment == attachment:
            self._open_now(session, request)

    def _open_now(self, session: Session, request: OpenProducer) -> None:
        access = self._access
        try:
            check_user_may_publish(self._ledger.identity.topic)
            if not request.was_open and (end := terminated(self._ledger)) is not None:
                raise end
            # Before others are evicted for it.
            self._producers.check_registration(request)
            takes_over = request.access_mode == ProducerAccessMode.ExclusiveWithFencing
            if access.is_awaited and request.topic_epoch == NO_EPOCH and not takes_over:
                # Answered when the producer that had the partition for itself is back, or stays away.
                access.wait(session, request)
                return
            producers = self._producers
            if self._returning.keeps_out(request, producers.by_name, producers.limit):
                self._returning.wait(session, request)
                return
            admitted = access.decide(request, self._producers.by_name.values())
            if admitted is None:
                access.wait(session, request)
            else:
                self._admit(session, request, admitted)
        except PulsarException as error:
            access.stop_waiting(session, request.producer_id)
            self._refuse(session, request, error)

    def _admit(self, session: Session, request: OpenProducer, admitted: Admitted) -> None:
        """Open a producer, and evict others for it. Raises what opening raises."""
        access, epoch = self._access, admitted.epoch
        access.stop_waiting(session, request.producer_id)
        if request.access_mode == ProducerAccessMode.ExclusiveWithFencing and epoch > access.epoch:
            self._refuse_waiting(epoch)
        for producer in admitted.evicted:
            self._producers.evict(producer, _evicted(epoch))
            self._note.closed(producer.name)
            access.release(producer.incarnation)
        opened = self._producers.open(session, request)._replace(topic_epoch=epoch)
        self._opened(session)
        if self._returning.came_back(opened.name):
            # Once this one has its place.
            self._loop.call_soon(self._ask_behind)
        known = KnownProducer(request.incarnation, session.client_id, request.producer_id)
        self._note.opened(opened.name, known)
        answer = partial(self._when_durable, partial(self._answer, session, request, opened))
        if epoch == NO_EPOCH:
            self._note.when_written(answer)
            return
        was_awaited = access.is_awaited
        access.take(request.incarnation, epoch)
        if self._ledger.changes.topic_epoch == (epoch, True):
            answer()
        else:
            self._host.spawn(self._answer_durably(session, request, opened))
        if was_awaited:
            self._ask_again()

    def _refuse_waiting(self, epoch: int) -> None:
        for session, request in self._access.take_waiting():
            self._refuse(session, request, _evicted(epoch))

    def _answer(self, session: Session, request: OpenProducer, opened: ProducerOpened) -> None:
        endpoint = session.endpoints.get(request.producer_id)
        if isinstance(endpoint, ProducerEndpoint) and endpoint.incarnation == request.incarnation:
            session.send(encode_request(opened))

    async def _answer_durably(self, session: Session, request: OpenProducer, opened: ProducerOpened) -> None:
        try:
            await self._writer.confirmed(self._ledger.changes.set_topic_epoch(opened.topic_epoch, held=True))
        except PulsarException as error:
            endpoint = session.endpoints.get(request.producer_id)
            if isinstance(endpoint, ProducerEndpoint) and endpoint.incarnation == request.incarnation:
                self.close(endpoint)
            self._refuse(session, request, error)
            return
        if self._access.holder == request.incarnation:
            session.send(encode_request(opened))

    # --- leaving ----------------------------------------------------------------------------------

    def close(self, endpoint: ProducerEndpoint) -> None:
        """Free the place of a producer that is gone, for those that wait for it."""
        self._held.pop((endpoint.session, endpoint.producer_id), None)
        self._producers.close(endpoint)
        if endpoint.name not in self._producers.by_name:
            self._note.closed(endpoint.name)
        is_gone = self._producers.current(endpoint) is endpoint
        if is_gone and self._access.release(endpoint.incarnation):
            self._writer.submit(self._ledger.changes.set_topic_epoch(self._access.epoch, held=False))
        if not self._producers.by_name:
            self._ask_again()

    def stop_waiting(self, session: Session, producer_id: int | None = None) -> None:
        """Forget a producer that waits, or all of a session that do."""
        self._access.stop_waiting(session, producer_id)
        self._returning.leave(session, producer_id)

    def left(self, session: Session, producer_id: int) -> None:
        """Forget a producer that waits, or was open before a restart."""
        self.stop_waiting(session, producer_id)
        if (name := self._returning.left(session.client_id, producer_id)) is not None:
            self._note.closed(name)
            self._ask_behind()

    def tick(self) -> None:
        """Let stopped processes lose the place that others wait for; once a second."""
        holders = list({producer.session for producer in self._producers.by_name.values()})
        if self._access.waiting and holders and not self._outlasting and all(h.is_stopped for h in holders):
            self._outlasting = True
            self._host.spawn(self._outlast(holders))

    async def _outlast(self, holders: Sequence[Session]) -> None:
        await self._host.outlast(holders)
        self._outlasting = False

    def _end_awaiting(self) -> None:
        for name in self._returning.stop_awaiting():
            self._note.closed(name)
        if self._access.is_awaited:
            self._access.is_awaited = False
            self._ask_again()
        self._ask_behind()

    def _ask_behind(self) -> None:
        """Answer those that waited for producers from before the restart, as far as possible."""
        for session, request in self._returning.take_waiting():
            if not session.is_ended:
                self._open_beside_others(session, request)

    def _ask_again(self) -> None:
        """Answer those that wait, in their order, as far as that is possible now."""
        for session, request in self._access.take_waiting():
            if not session.is_ended:
                self._open_now(session, request)

    def _refuse(self, session: Session, request: OpenProducer, error: PulsarException) -> None:
        text = text_naming(error, self._ledger.identity.topic)
        session.send(encode_request(Failed(request.request_id, type(error).__name__, text)))


def _evicted(epoch: int) -> ProducerFenced:
    return ProducerFenced(
        f"another producer has taken the topic for itself, as topic epoch {epoch}: this one is evicted; "
        "create another producer to go on"
    )
