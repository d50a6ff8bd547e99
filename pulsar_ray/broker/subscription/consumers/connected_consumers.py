"""The consumers that are connected to one subscription, and sending them what they are granted."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.consumers.standing_notice import StandingNotice
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS, ChunkLimits
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.dispatch.key_shared.hash_regions import key_shared_spec
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import BrokerMetadataError, ConsumerBusy, PulsarException
from pulsar_ray.lane.progress_page import CounterView
from pulsar_ray.ledger.offloaded import AWAY
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.managed_ledger.log.trimmed_ledgers import last_trimmed_ledger
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.registrations import kept_bytes
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.requests import OpenConsumer, Reset, encode_request
from pulsar_ray.session.session_table import Carrier, Session

MAX_GRANTS_PER_PACKET = 512
RETRY_REMOTE_S = 1.0
MAX_CHUNKS_PER_PACKET = 4096
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_UNSENT_BYTES = 4 * 1024 * 1024


class DeliverySender(Protocol):
    """Puts the deliveries of one consumer on its session's carrier, in order."""

    @property
    def has_unsent(self) -> bool:
        """Whether granted deliveries are not on the carrier yet."""

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        """Send grants behind all that were sent before."""

    def drop_below(self, generation: int) -> None:
        """Forget unsent deliveries of lower generations."""

    def end(self) -> None:
        """Forget unsent deliveries, and send nothing more."""


class PlaceSender:
    """Sends the places of blocks to a consumer that reads the files; nothing waits here."""

    has_unsent = False

    def __init__(self, session: Session, encoder: DeliverEncoder) -> None:
        self._session = session
        self._encode = encoder.encode
        self._encode_chunks = encoder.encode_chunks

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        for start in range(0, len(grants), MAX_GRANTS_PER_PACKET):
            part = grants[start : start + MAX_GRANTS_PER_PACKET]
            for grant in part:
                if grant.block.chunks:
                    self._send_chunks(generation, grant)
            self._session.send(self._encode(generation, part))

    def _send_chunks(self, generation: int, grant: Grant) -> None:
        chunks = grant.block.chunks
        for index in range(0, len(chunks), MAX_CHUNKS_PER_PACKET):
            part = chunks[index : index + MAX_CHUNKS_PER_PACKET]
            self._session.send(self._encode_chunks(generation, grant, index, part))

    def drop_below(self, generation: int) -> None:
        """Drop nothing: all is sent."""

    def end(self) -> None:
        """Drop nothing: all is sent."""


class BytesSender:
    """Reads blocks from their files and sends the bytes.

    Grants wait, unread, while the carrier is busy.
    """

    def __init__(
        self,
        session: Session,
        encoder: DeliverEncoder,
        directory: str,
        loop: asyncio.AbstractEventLoop,
        disk: DiskThread,
        notice: StandingNotice,
    ) -> None:
        self._session = session
        self._notice = notice
        self._encode = encoder.encode
        self._encode_chunks = encoder.encode_chunks
        self._directory = directory
        self._loop = loop
        self._disk = disk
        self._waiting: deque[tuple[int, Grant]] = deque()
        self._is_sending = False
        self._is_ended = False
        self._has_waited = False
        self._lowest_generation = 0
        self._single_parts = 0

    @property
    def has_unsent(self) -> bool:
        return self._is_sending or bool(self._waiting)

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        self._waiting.extend((generation, grant) for grant in grants)
        if not self._is_sending:
            self._is_sending = True
            task = self._loop.create_task(self._send_waiting())
            task.add_done_callback(self._raise_uncaught)

    def drop_below(self, generation: int) -> None:
        self._lowest_generation = max(self._lowest_generation, generation)
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] >= generation)

    def end(self) -> None:
        self._is_ended = True
        self._waiting.clear()

    def _raise_uncaught(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "sending deliveries failed", "exception": error})

    async def _send_waiting(self) -> None:
        try:
            await self._send_bytes()
        finally:
            self._is_sending = False

    async def _send_bytes(self) -> None:
        while self._waiting:
            carrier = self._session.carrier
            if carrier is None or self._is_ended:
                self._waiting.clear()
                return
            if carrier.unsent_bytes > MAX_UNSENT_BYTES:
                await carrier.drained()
                if self._session.carrier is not carrier or not self._waiting:
                    continue
            generation, part = self._next_part()
            try:
                if part[0].block.chunks:
                    await self._send_chunks(carrier, generation, part[0])
                refs = [grant.block for grant in part]
                body = await self._disk.run(lambda refs=refs: _read(self._directory, refs))  # type: ignore[misc]
            except AWAY as error:
                # Only this consumer waits; what it is granted stays granted.
                self._put_back(generation, part)
                if self._is_current(carrier):
                    self._notice.failed(error, generation, self._loop.time())
                self._has_waited = True
                await asyncio.sleep(RETRY_REMOTE_S)
            except PulsarException as error:
                if len(part) > 1:
                    # One of them cannot be read: each goes alone, so that the others arrive.
                    self._single_parts = len(part)
                    self._put_back(generation, part)
                else:
                    await self._send_unread(carrier, generation, part[0], error)
            else:
                self._send_part(carrier, generation, part, body)

    def _is_current(self, carrier: Carrier) -> bool:
        return self._session.carrier is carrier and not self._is_ended

    def _send_part(
        self, carrier: Carrier, generation: int, part: Sequence[Grant], body: Sequence[bytes]
    ) -> None:
        if self._is_current(carrier):
            if self._has_waited:
                self._has_waited = False
                self._notice.went_on(generation)
            self._session.send(self._encode(generation, part, body))

    async def _send_unread(
        self, carrier: Carrier, generation: int, grant: Grant, error: PulsarException
    ) -> None:
        """Send a block's place, and the error that the consumer is to raise."""
        if not isinstance(error, SegmentGone):
            if self._is_current(carrier):
                self._notice.has_no_bytes(error, generation, grant.number)
        elif await self._disk.run(partial(self._is_trimmed, (grant,))):
            grant = _without_bytes(grant)
        self._send_part(carrier, generation, [grant], [])

    def _put_back(self, generation: int, part: Sequence[Grant]) -> None:
        """Send these grants next, unless their queue was dropped while they were read."""
        if generation >= self._lowest_generation:
            self._waiting.extendleft((generation, grant) for grant in reversed(part))

    def _is_trimmed(self, part: Sequence[Grant]) -> bool:
        last = last_trimmed_ledger(Path(self._directory))
        return all(grant.block.ledger_id <= last for grant in part)

    async def _send_chunks(self, carrier: Carrier, generation: int, grant: Grant) -> None:
        """Send the chunks before a message's last one, a few MiB at a time."""
        chunks = grant.block.chunks
        index = 0
        while index < len(chunks):
            if carrier.unsent_bytes > MAX_UNSENT_BYTES:
                await carrier.drained()
            if self._session.carrier is not carrier or self._is_ended:
                return
            size, end = chunks[index].length, index + 1
            while end < len(chunks) and size + chunks[end].length <= MAX_BODY_BYTES:
                size += chunks[end].length
                end += 1
            part = chunks[index:end]
            body = await self._disk.run(lambda part=part: _read(self._directory, part))  # type: ignore[misc]
            if self._session.carrier is carrier and not self._is_ended:
                self._session.send(self._encode_chunks(generation, grant, index, part, body))
            index = end

    def _next_part(self) -> tuple[int, list[Grant]]:
        generation, first = self._waiting.popleft()
        part = [first]
        size = first.block.length
        if self._single_parts:
            self._single_parts -= 1
            return generation, part
        if first.block.chunks:
            return generation, part
        while self._waiting and len(part) < MAX_GRANTS_PER_PACKET:
            following_generation, grant = self._waiting[0]
            size += grant.block.length
            is_alone = size > MAX_BODY_BYTES or grant.block.chunks
            if following_generation != generation or is_alone:
                break
            part.append(grant)
            self._waiting.popleft()
        return generation, part


def _without_bytes(grant: Grant) -> Grant:
    """Return the grant of a trimmed block: there is nothing to read."""
    return grant._replace(block=grant.block._replace(length=0))


def _read(directory: str, refs: Sequence[BlockRef]) -> list[bytes]:
    readers: dict[tuple[int, int], SegmentReader] = {}
    try:
        body = []
        for ref in refs:
            key = (ref.ledger_id, ref.segment_index)
            if key not in readers:
                readers[key] = SegmentReader(Path(directory) / segment_name(*key))
            body.append(readers[key].read_block(ref.offset, ref.length))
        return body
    finally:
        for reader in readers.values():
            reader.close()


class ConsumerEndpoint:
    """One attachment of a consumer; once it is open, deliveries and resets are sent.

    `numbering` is the id under which this consumer's deliveries are counted.
    """

    def __init__(
        self,
        subscription: str,
        session: Session,
        request: OpenConsumer,
        numbering: int,
        sender: DeliverySender,
        notice: StandingNotice | None = None,
    ) -> None:
        self.subscription = subscription
        self.session = session
        self.consumer_id = request.consumer_id
        self.incarnation = request.incarnation
        self.name = request.name
        self.metadata = request.properties or {}
        self.kept_bytes = kept_bytes(request.name + subscription, request.properties)
        self.reads_files = request.reads_files
        self.numbering = numbering
        self.redeliveries = request.redeliveries
        """How often it had asked for all it holds when it declared that."""
        self.dead_letters = (0, "")
        """How many messages it moved to dead letter topics, and why not more."""
        self.handed_over = None if request.handed_over is None else CounterView.open(request.handed_over)
        """The client's count of messages that left its queue, if it can be seen."""
        self.count_crashes = request.count_crashes
        self.is_read_compacted = request.is_read_compacted
        self.was_open = request.joined > 0
        """Whether it had been open before, perhaps at an earlier dispatcher."""
        self._attachment = session.attachment
        self._sender = sender
        self._notice = notice or StandingNotice(session, request.consumer_id, numbering)
        self._is_open = False
        self._early: list[tuple[int, Sequence[Grant]]] = []
        self.deliver: Callable[[Sequence[Grant], int], None] = self._deliver_later
        """Sends grants of a generation behind all others.

        Until `open` they wait, for a client takes numbers in order only.
        """
        self._known_active: bool | None = None

    def open(self, again: Sequence[Grant], generation: int) -> None:
        """Send `again`, and then all grants since: the client knows that it is open."""
        early, self._early = self._early, []
        self._is_open = True
        self.deliver = self._sender.send
        self.deliver(again, generation)
        for of_generation, grants in early:
            self.deliver(grants, of_generation)

    def retire(self) -> None:
        """Send nothing more: the consumer attached again, and its new endpoint sends the rest."""
        self._sender.end()

    def _deliver_later(self, grants: Sequence[Grant], generation: int) -> None:
        self._early.append((generation, grants))

    @property
    def has_unsent(self) -> bool:
        """Whether deliveries were granted that are not on the carrier yet."""
        return self._sender.has_unsent or bool(self._early)

    @property
    def is_on_carrier(self) -> bool:
        """Whether this attachment is open and still the one that its session's carrier belongs to."""
        session = self.session
        return self._is_open and session.carrier is not None and session.attachment == self._attachment

    def drop_queue(self, drop: DropQueue) -> None:
        """Have the consumer drop its queue of lower generations; unsent deliveries of these go too."""
        self._sender.drop_below(drop.generation)
        self._notice.sought()
        self._early = [early for early in self._early if early[0] >= drop.generation]
        _, generation, last_number, granted, is_seek, start = drop
        self.session.send(
            encode_request(
                Reset(
                    self.consumer_id,
                    generation,
                    is_seek,
                    last_number,
                    granted,
                    start=None if start is None else list(start),
                )
            )
        )

    def stands(self, error: BaseException | None, generation: int, now_s: float) -> None:
        """Tell why nothing can be read for this consumer; see StandingNotice."""
        if self.is_on_carrier:
            self._notice.failed(error, generation, now_s)

    def goes_on(self, generation: int) -> None:
        """Take back that nothing can be read."""
        self._notice.went_on(generation)

    def notify_active(self, is_active: bool, generation: int) -> None:
        """Send whether the consumer is active, once it is open and unless it knows."""
        if self._is_open and is_active is not self._known_active:
            self._known_active = is_active
            self.session.send(encode_request(Reset(self.consumer_id, generation, is_active=is_active)))


EndpointFactory = Callable[[Session, OpenConsumer, int], ConsumerEndpoint]
"""Makes the endpoint of a consumer that opens, with the id of its numbering."""


def check_limit(settings: DispatchSettings, present: Collection[int], request: OpenConsumer) -> None:
    """Raise ConsumerBusy for a consumer that is new, and one too many; `present` are incarnations."""
    limit = settings.max_consumers_per_subscription
    if 0 < limit <= len(present) and not request.joined and request.incarnation not in present:
        raise ConsumerBusy(
            f"the subscription has {len(present)} consumers, and the policy max_consumers_per_subscription "
            f"allows {limit}: close one, or raise the policy"
        )


def spec_of(request: OpenConsumer, numbering: int) -> ConsumerSpec:
    """Describe a consumer; `numbering` is higher than any that subscribed before can name."""
    return ConsumerSpec(
        request.incarnation,
        request.name,
        ConsumerType(request.consumer_type),
        request.priority_level,
        request.batch_index_ack,
        request.joined if 0 < request.joined < numbering else numbering,
        request.is_multi_topic,
        key_shared_spec(request.key_shared),
        DEFAULT_LIMITS if request.chunk_limits is None else ChunkLimits(*request.chunk_limits),
    )


NUMBERING_BITS = 20


class ConnectedConsumers(dict[int, ConsumerEndpoint]):
    """Endpoints by incarnation; gives them the ids of their numberings.

    Deliveries are numbered anew whenever the dispatcher does not know their consumer. Ids rise with the
    dispatcher's epoch: so a consumer that missed the answer to its attach is not believed to have what it had
    of an earlier numbering.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._ids = itertools.count(epoch << NUMBERING_BITS)

    def numbering(self, incarnation: int, *, is_known: bool) -> int:
        """Return the id of a consumer's numbering: a new one unless the consumer is known."""
        return self[incarnation].numbering if is_known else next(self._ids)

    def put(self, endpoint: ConsumerEndpoint) -> None:
        """Make an endpoint the consumer's, in place of one that it had before."""
        former = self.get(endpoint.incarnation)
        if former is not None:
            former.retire()
            endpoint.dead_letters = former.dead_letters
        self[endpoint.incarnation] = endpoint
        endpoint.session.endpoints[endpoint.consumer_id] = endpoint

    def remove(self, endpoint: ConsumerEndpoint) -> bool:
        """Forget a consumer; False if another endpoint has taken this one's place."""
        if self.get(endpoint.incarnation) is not endpoint:
            return False
        del self[endpoint.incarnation]
        return True

    def drop_queues(self, drops: Sequence[DropQueue]) -> None:
        """Have consumers drop their queues."""
        for drop in drops:
            endpoint = self.get(drop.incarnation)
            if endpoint is not None:
                endpoint.drop_queue(drop)

    def deliver(
        self, grants: Sequence[Grant], generation: int, is_for_one: bool
    ) -> dict[int, Sequence[Grant]]:
        """Send each consumer its grants; returns them by consumer. `is_for_one`: all are for the first's."""
        by_consumer = {grants[0].incarnation: grants} if is_for_one else _by_consumer(grants)
        for incarnation, granted in by_consumer.items():
            endpoint = self.get(incarnation)
            if endpoint is not None:
                endpoint.deliver(granted, generation)
        return by_consumer

    def notify_active(self, active: Consumer | None, generation: int) -> None:
        """Notify consumers whether they are active, unless they know.

        Only Failover has an active one to tell of.
        """
        if active is None or active.spec.consumer_type != ConsumerType.Failover:
            return
        for incarnation, endpoint in self.items():
            endpoint.notify_active(incarnation == active.spec.incarnation, generation)

    def stand(
        self, active: Consumer | None, error: BaseException | None, generation: int, now_s: float
    ) -> None:
        """Tell all consumers, or the active one, why nothing can be read."""
        for incarnation, endpoint in self.items():
            if active is None or incarnation == active.spec.incarnation:
                endpoint.stands(error, generation, now_s)

    def go_on(self, generation: int) -> None:
        """Tell who was told otherwise that reading goes on."""
        for endpoint in self.values():
            endpoint.goes_on(generation)

    def sessions_beside(self, session: Session) -> list[Session]:
        """Return the sessions of the other connected consumers."""
        return [endpoint.session for endpoint in self.values() if endpoint.session is not session]

    def names(self, besides: ConsumerEndpoint | None = None) -> str:
        """The names of the connected consumers, sorted; "" if there are none."""
        return ", ".join(sorted(endpoint.name for endpoint in self.values() if endpoint is not besides))

    def check_sole(self, endpoint: ConsumerEndpoint, where: str) -> None:
        """Raise BrokerMetadataError, as Pulsar does, if others are connected to `where`."""
        if others := self.names(besides=endpoint):
            raise BrokerMetadataError(
                f"unsubscribe: other consumers ({others}) are connected to {where}; close them first"
            )


def _by_consumer(grants: Sequence[Grant]) -> dict[int, Sequence[Grant]]:
    found: dict[int, list[Grant]] = {}
    for grant in grants:
        found.setdefault(grant.incarnation, []).append(grant)
    return dict(found)
