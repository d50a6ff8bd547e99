"""Publishing at the partition: admit blocks, write them in groups, tell what became of each.

Everything that arrived in one turn of the owner loop becomes one write and one fdatasync on the disk thread;
what arrives meanwhile becomes the next one. Small writes to a disk that has proved quick are waited for
instead (ADR 0009). A block is *durable* behind its write and the epoch check after it. It is *confirmed* in
`PublishIntake.confirm`, which alone tells producers that blocks are stored and lets readers see them: never
earlier, and later where the owner wants them to be durable elsewhere, too (ADR 0115).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from pulsar_ray.broker.partition.backlog.backlog_quota import UNLIMITED
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing.broken_messages import part_broken
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers, tell_evicted
from pulsar_ray.broker.partition.publishing.duplicate_blocks import sift
from pulsar_ray.broker.partition.publishing.producer_endpoint import (
    Admitted,
    Outcomes,
    ProducerEndpoint,
    Refused,
    StoredRow,
    WaitingBlocks,
)
from pulsar_ray.broker.partition.publishing.publish_gate import PublishGate, PublishThrottle
from pulsar_ray.broker.serving.owner_loop import SMALL_WRITE_BYTES, SMALL_WRITE_MESSAGES, QuickDisk
from pulsar_ray.clock import Clock
from pulsar_ray.config import ENTRY_OVERHEAD_BYTES
from pulsar_ray.errors import (
    BrokerPersistenceError,
    DiskSpaceLow,
    Fenced,
    MessageTooBig,
    NotAllowedError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProtocolError,
    PulsarException,
    SessionLost,
    TopicTerminated,
)
from pulsar_ray.format.block import (
    ARROW,
    CHUNK,
    DELAYED,
    BlockHeader,
    check_block_size,
    check_claim,
    parse_block_header,
    verify_bytes,
)
from pulsar_ray.format.delivery_times import check_delay, delivery_times
from pulsar_ray.managed_ledger.log.commit import AppendResult, LogEnd
from pulsar_ray.managed_ledger.log.producer_incarnations import (
    NO_IDS,
    Duplicate,
    Forgotten,
    Gap,
    NeverStored,
    New,
    ProducerIncarnations,
    Repeat,
)
from pulsar_ray.managed_ledger.log.producer_sequences import ProducerSequences
from pulsar_ray.model.message_id import DUPLICATE, Position
from pulsar_ray.model.metric_catalogue import COMMIT_BLOCKS, FSYNC_SECONDS, PUBLISH_LATENCY
from pulsar_ray.model.traffic import BucketCounts, IncomingTraffic
from pulsar_ray.session.session_table import Session

logger = logging.getLogger(__name__)


# The first that fits counts: a low disk is a kind of failed write.
_REASONS = (
    (DiskSpaceLow, "disk_space"),
    (ProducerBlockedQuotaExceededError, "backlog_quota"),
    (ProducerBlockedQuotaExceededException, "backlog_quota"),
    (TopicTerminated, "terminated"),
    (MessageTooBig, "too_large"),
    (NotAllowedError, "delayed_too_long"),
    (BrokerPersistenceError, "not_stored"),
)
REFUSAL_REASONS = (*dict.fromkeys(reason for _, reason in _REASONS), "other")
"""The values that the label `reason` may have."""


def refusal_reason(error: PulsarException) -> str:
    """Return the label for the error with which blocks are refused."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")


class PublishFigures:
    """Counted once for each block or commit, absolute since the partition started."""

    def __init__(self) -> None:
        self.latency = BucketCounts(PUBLISH_LATENCY.buckets)
        self.write_seconds = BucketCounts(FSYNC_SECONDS.buckets)
        self.commit_blocks = BucketCounts(COMMIT_BLOCKS.buckets)
        self.refused: Counter[str] = Counter(dict.fromkeys(REFUSAL_REASONS, 0))

    def refuses(self, error: PulsarException) -> None:
        """A block is refused, or held back until its producer may go on."""
        self.refused[refusal_reason(error)] += 1


T = TypeVar("T")


class Log(Protocol):
    """Where blocks are appended: a managed ledger, or one that keeps nothing."""

    epoch: int
    incarnations: ProducerIncarnations
    sequences: ProducerSequences

    @property
    def readable_position(self) -> Position: ...

    def show(self, end: LogEnd) -> None: ...

    def begin_append(self, blocks: Any, now_ms: int) -> Any: ...

    def finish_append(self, commit: Any) -> AppendResult: ...

    def fail_append(self, commit: Any) -> None: ...


class CommitThread(Protocol):
    """Where appends are written: a DiskThread, or nowhere."""

    @property
    def is_idle(self) -> bool: ...

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]
    ) -> None: ...


class Quota(Protocol):
    """Says how much may be stored before a backlog is at its limit."""

    is_on: bool
    """Whether there is a limit."""

    def room_bytes(self) -> int:
        """Return how much fits in; 0: it has to decide first."""

    def decide(self, answer: Callable[[PulsarException | None], None]) -> None:
        """Answer, perhaps later, with the reason not to store; None: there is room."""


class _Stored(NamedTuple):
    """A group of blocks that is durable and not confirmed yet."""

    group: list[Admitted]
    result: AppendResult
    is_awaited: bool
    duplicates: list[tuple[ProducerEndpoint, BlockHeader]]
    """Blocks whose messages are among these, or stored before: confirmed behind them."""


class PublishIntake:
    """Owns a partition's stream of commits, from admitted blocks to their outcomes.

    Runs on the owner loop.

    `on_durable` is given the end of the log behind each commit, and calls `confirm` with that end, or with a
    later one, once what is before it may be confirmed: at once where the disk here is enough. Then
    `on_readable` is called for each commit. `on_fatal` is called if the log belongs to another owner by now.
    """

    def __init__(
        self,
        ledger: Log,
        producers: ConnectedProducers,
        policies: PartitionPolicies,
        gate: PublishGate,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        disk: CommitThread,
        waiting: WaitingBlocks,
        throttle: PublishThrottle,
        *,
        on_readable: Callable[[AppendResult], None],
        on_fatal: Callable[[BaseException], None],
        on_durable: Callable[[LogEnd], None] | None = None,
        quota: Quota | None = None,
    ) -> None:
        self._ledger = ledger
        self._producers = producers
        self._policies = policies
        self._gate = gate
        self._quota = quota
        self._clock = clock
        self._loop = loop
        self._disk = disk
        self._on_durable = on_durable or self.confirm
        self._on_readable = on_readable
        self._on_fatal = on_fatal
        self._waiting = waiting
        self._throttle = throttle
        self._unconfirmed: deque[_Stored] = deque()
        """Bounded as waiting blocks are: each counts against what is held of its carrier."""
        self._committing = False
        self._turn_scheduled = False
        self._is_awaited = False
        self._quick_disk = QuickDisk()
        self.traffic = IncomingTraffic(clock.monotonic_ms())
        self.figures = PublishFigures()
        self.commits = 0
        self.duplicates = 0
        """Messages that were left out because they had been stored before."""

    @property
    def is_idle(self) -> bool:
        """Whether no block is admitted that is not answered yet."""
        under_way = self._committing or self._turn_scheduled or self._waiting.size_bytes
        return not (under_way or self._unconfirmed)

    # --- admission --------------------------------------------------------------------------------

    def publish(
        self, session: Session, producer_id: int, body: memoryview, *, is_awaited: bool = False
    ) -> None:
        """Admit every block of one packet; `is_awaited`: somebody stands still for its receipt.

        Raises ProtocolError for bytes that are no blocks (the carrier is then closed).
        """
        producer = session.endpoints.get(producer_id)
        if not isinstance(producer, ProducerEndpoint):
            raise SessionLost(f"producer {producer_id} is not open in this session: open it again")
        if producer.eviction is not None:
            tell_evicted(producer)
            return
        if producer.is_held:
            return  # it comes again, behind its next opening
        self._is_awaited |= is_awaited
        arrived = time.perf_counter()
        offset, size = 0, len(body)
        while offset < size:
            header = parse_block_header(body, offset)
            end = offset + header.total_length
            if end > size:
                raise ProtocolError(
                    f"a block of {header.total_length} bytes in {size - offset} bytes of packet"
                )
            verify_bytes(body, offset, header.total_length, header.checksum, "block")
            self._admit(producer, header, body[offset:end], arrived)
            offset = end

    def _admit(
        self, producer: ProducerEndpoint, header: BlockHeader, block: memoryview, arrived: float
    ) -> None:
        seq = header.entry_seq
        if header.incarnation != producer.incarnation:
            raise ProtocolError(
                f"a block of incarnation {header.incarnation} on a producer of {producer.incarnation}"
            )
        if seq < producer.next_seq:
            self._answer_repeat(producer, header)
            return
        if seq > producer.next_seq and not producer.may_skip_to(seq):
            if producer.awaits_rest:
                return  # what was sent behind a block before its rest comes again, behind that
            raise SessionLost(
                f"entry_seq {producer.next_seq} is missing before {seq}: attach again and resend"
            )
        producer.rest_end_seq = 0
        producer.next_seq = seq + header.entries
        refusal = self._refusal(header)
        chunk = header.metadata().chunk if header.flags & CHUNK else None
        if isinstance(refusal, ProducerBlockedQuotaExceededException) and producer.goes_on_with(chunk):
            refusal = None
        if refusal is not None:
            self._refuse(producer, seq, refusal)
            return
        if chunk is not None:
            producer.admitted_chunk(chunk)
        carrier = producer.session.carrier
        if carrier is not None:
            carrier.retain(header.total_length)
        self._waiting.append((producer, header, block, carrier, arrived))
        if self._throttle.limit is not None:
            self._throttle.charge(producer.session, header.message_count, header.total_length)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_of_turn)

    def _refusal(self, header: BlockHeader) -> PulsarException | None:
        payload, total = header.payload_length, header.total_length
        settings = self._policies.settings
        if payload > settings.max_message_size or total > settings.netty_max_frame_size_bytes:
            limit = settings.max_message_size
            with_columns = (limit + ENTRY_OVERHEAD_BYTES) * header.message_count
            if header.payload_format == ARROW and payload <= with_columns:
                # Messages became a batch before their producer knew the limit of now: none of them need be
                # too large.
                limit = payload
            try:
                check_block_size(payload, total, limit, settings.netty_max_frame_size_bytes)
            except PulsarException as error:
                return error
        try:
            if header.message_count > 1:
                check_claim(header)
            if settings.delayed_delivery_max_delay_in_millis and header.flags & DELAYED:
                self._check_delays(header)
        except PulsarException as error:
            return error
        return self._gate.refusal

    def _check_delays(self, header: BlockHeader) -> None:
        """Refuse a block of messages delayed too long; their producer knows the limit, too."""
        times = delivery_times(header)
        latest = times if isinstance(times, int) else max(times or (0,))
        # A message may be added to a block some time after that was begun.
        now_ms = max(self._clock.now_ms(), header.publish_time_ms)
        check_delay(latest, now_ms, self._policies.settings.delayed_delivery_max_delay_in_millis)

    def _answer_repeat(self, producer: ProducerEndpoint, header: BlockHeader) -> None:
        ledger = self._ledger
        last_id = header.last_sequence_id if ledger.sequences.is_on else NO_IDS
        known = ledger.incarnations.classify(header.incarnation, header.entry_seq, header.entries, last_id)
        # Behind blocks that were left out or refused, the log has a gap where the next one was expected.
        is_not_stored = isinstance(known, New | Gap)
        if is_not_stored and last_id <= ledger.sequences.durable_id(producer.name):
            known = Duplicate()
        # A repeat that is not confirmed yet is being written, or waits: its receipt follows from there.
        if isinstance(known, Repeat) and known.position <= ledger.readable_position:
            row = (producer.producer_id, header.entry_seq, header.entries, *known.position)
            producer.outcomes.stored([row])
        elif isinstance(known, Duplicate):
            if not self._waiting.has(header):
                self._leave_out([(producer, header)])
        elif isinstance(known, Forgotten):
            refusal = BrokerPersistenceError("nobody remembers whether the partition stored this message")
            self._refuse(producer, header.entry_seq, refusal)
        elif isinstance(known, NeverStored) or (is_not_stored and not self._waiting.has(header)):
            # It was refused, and the refusal lost with its carrier. Later blocks may be stored already.
            not_stored = "the partition refused this message before: it was not stored"
            reason = self._refusal(header) or BrokerPersistenceError(not_stored)
            self._refuse(producer, header.entry_seq, reason)

    def _refuse(self, producer: ProducerEndpoint, entry_seq: int, error: PulsarException) -> None:
        self.figures.refuses(error)
        producer.outcomes.refused(Refused(producer.producer_id, entry_seq, error))

    # --- commits ----------------------------------------------------------------------------------

    def _end_of_turn(self) -> None:
        self._turn_scheduled = False
        if not self._committing:
            self._next()

    def _next(self) -> None:
        self._committing = False
        while self._waiting.size_bytes:
            room_bytes, quota = UNLIMITED, self._quota
            if quota is not None and quota.is_on and (room_bytes := quota.room_bytes()) <= 0:
                self._committing = True  # nothing else is written meanwhile
                quota.decide(self._decided)
                return
            group = self._to_store(self._waiting.take_group(room_bytes))
            if group:
                self._committing = True
                self._commit(group, retried=False)
                return

    def _decided(self, refusal: PulsarException | None) -> None:
        """Store what waits, or turn it back because of the backlog."""
        group = [] if refusal is None else self._to_store(self._turn_back(refusal))
        if group:
            self._commit(group, retried=False)
        else:
            self._next()

    def _turn_back(self, refusal: PulsarException) -> list[Admitted]:
        """Hold the producers of waiting blocks, or refuse these.

        Returns the blocks that are to be stored all the same."""
        going_on, others = self._waiting.take_all()
        self._release(others)
        for producer, header, *_ in others:
            current = self._producers.current(producer)
            if current is None:
                continue
            current.message_in_chunks = ""
            if not isinstance(refusal, ProducerBlockedQuotaExceededError):
                self._refuse(current, header.entry_seq, refusal)
            elif not current.is_held:
                self.figures.refuses(refusal)
                self._producers.hold(current, header.entry_seq, refusal)
        return going_on

    def _to_store(self, group: list[Admitted]) -> list[Admitted]:
        """Answer the blocks that are stored already or must not be; returns the others."""
        if group and self._ledger.sequences.is_on:
            group = self._without_duplicates(group)
        for _, header, *_ in group:
            if header.flags & CHUNK:
                return self._without_broken_messages(group)
        return group

    def _without_broken_messages(self, group: list[Admitted]) -> list[Admitted]:
        """Refuse the rest of messages of which a chunk was refused.

        Stored, their last chunk would pass for the message: whoever sends that again would be told that it
        is stored.
        """
        parted = part_broken(group, self._ledger.incarnations)
        self._release(parted.broken)
        reason = BrokerPersistenceError("the partition did not store an earlier chunk of this message")
        for producer, header, *_ in parted.broken:
            current = self._producers.current(producer)
            if current is not None:
                self._refuse(current, header.entry_seq, reason)
        return parted.to_store

    def _without_duplicates(self, group: list[Admitted]) -> list[Admitted]:
        """Take out the blocks whose messages are stored already, and answer those."""
        sifted = sift(group, self._ledger.sequences)
        if len(sifted.new) == len(group):
            return group
        self._waiting.put_back(sifted.put_off)
        self._release(sifted.duplicates)
        self._leave_out([(producer, header) for producer, header, *_ in sifted.duplicates])
        self._release(sifted.behind)
        for admitted, stored_id in sifted.overlapping:
            self._release([admitted])
            self._ask_for_rest(admitted[0], admitted[1], stored_id)
        return sifted.new

    def _leave_out(self, duplicates: list[tuple[ProducerEndpoint, BlockHeader]]) -> None:
        """Confirm blocks whose messages are stored, once all that is stored now is confirmed."""
        if self._unconfirmed:
            self._unconfirmed[-1].duplicates.extend(duplicates)
        else:
            self._confirm_duplicates(duplicates)

    def _confirm_duplicates(self, blocks: list[tuple[ProducerEndpoint, BlockHeader]]) -> None:
        rows: dict[Outcomes, list[StoredRow]] = {}
        for producer, header in blocks:
            self.duplicates += header.message_count
            current = self._producers.current(producer)
            if current is not None:
                row = (current.producer_id, header.entry_seq, header.entries, *DUPLICATE)
                rows.setdefault(current.outcomes, []).append(row)
        for outcomes, stored in rows.items():
            outcomes.stored(stored)

    def _ask_for_rest(self, producer: ProducerEndpoint, header: BlockHeader, stored_id: int) -> None:
        """Have a producer send a block again without the messages that are stored.

        All that it sent behind that block has to come again, too.
        """
        self._release(self._waiting.take_out(header.incarnation))
        current = self._producers.current(producer)
        if current is None:
            return
        current.next_seq = header.entry_seq
        current.rest_end_seq = header.entry_seq + header.entries
        reason = ProducerBusy(f"messages up to sequence id {stored_id} are stored: send those above it")
        asked = Refused(current.producer_id, header.entry_seq, reason, {"stored_sequence_id": stored_id})
        current.outcomes.refused(asked)

    def _release(self, blocks: list[Admitted]) -> None:
        """Count these blocks no more against what is held of their carriers."""
        for _, header, _, carrier, _ in blocks:
            if carrier is not None:
                carrier.release(header.total_length)

    def _commit(self, group: list[Admitted], *, retried: bool) -> None:
        is_awaited, self._is_awaited = self._is_awaited, False
        blocks = []
        messages = 0
        for _, header, block, *_ in group:
            blocks.append((header, (block,)))
            messages += header.message_count
        commit = self._ledger.begin_append(blocks, self._clock.now_ms())
        # Somebody may be waiting for it, rather than sending a stream.
        is_lone = messages <= SMALL_WRITE_MESSAGES and commit.total_bytes <= SMALL_WRITE_BYTES

        def done(seconds: float | None, error: BaseException | None) -> None:
            if error is not None:
                self._ledger.fail_append(commit)
                self._failed(group, error, retried=retried)
                return
            if is_lone and seconds is not None:
                self._quick_disk.took(seconds)
            if seconds is not None:
                self.figures.write_seconds.observe(seconds)
                self.figures.commit_blocks.observe(len(group))
            stored = _Stored(group, self._ledger.finish_append(commit), is_awaited, [])
            # Waiting blocks go to the disk thread before this group is answered, so that the disk is not idle
            # meanwhile; but not a write that would be waited for here, whose answers must come behind.
            is_disk_busy = self._waiting.size_bytes > SMALL_WRITE_BYTES
            self._unconfirmed.append(stored)
            if is_disk_busy:
                self._next()
            self.commits += 1
            self._on_durable(stored.result.end)
            if not is_disk_busy:
                self._next()

        if not is_lone or not self._quick_disk.is_trusted or not self._disk.is_idle:
            self._disk.submit(commit.run, done)
            return
        try:
            seconds = commit.run()
        except BaseException as error:  # noqa: BLE001 - as from the disk thread
            done(None, error)
        else:
            done(seconds, None)

    def confirm(self, end: LogEnd) -> None:
        """Confirm to producers all blocks up to an end, and let readers see them.

        It may be repeated, and is the only place where that happens. An end that no commit has reached yet
        confirms what is before it.
        """
        position, unconfirmed, connected = end.position, self._unconfirmed, self._producers.by_name
        while unconfirmed and unconfirmed[0].result.end.position <= position:
            group, result, is_awaited, duplicates = unconfirmed.popleft()
            self._ledger.show(result.end)
            if not is_awaited:
                # The process written to first tends to run first, often on this very processor: dispatchers.
                self._on_readable(result)
            rows: dict[Outcomes, list[StoredRow]] = {}
            messages = size = chunks = 0
            now, observe = time.perf_counter(), self.figures.latency.observe
            for (producer, header, _, carrier, arrived), stored_at in zip(
                group, result.positions, strict=True
            ):
                observe(now - arrived)
                length = header.total_length
                messages += header.message_count
                size += length
                is_chunk = 1 if header.flags & CHUNK else 0
                chunks += is_chunk
                producer.traffic.stored(header.message_count, length, is_chunk)
                if carrier is not None:
                    carrier.release(length)
                # Seldom it has attached again since, or another one has its name.
                is_known = connected.get(producer.name) is producer
                current = producer if is_known else self._producers.current(producer)
                if current is not None:
                    row = (current.producer_id, header.entry_seq, header.entries, stored_at[0], stored_at[1])
                    rows.setdefault(current.outcomes, []).append(row)
            self.traffic.stored(messages, size, chunks)
            for outcomes, blocks in rows.items():
                outcomes.stored(blocks)
            if is_awaited:
                self._on_readable(result)
            if duplicates:
                self._confirm_duplicates(duplicates)

    def _failed(
        self,
        group: list[Admitted],
        error: BaseException,
        *,
        retried: bool,
    ) -> None:
        if isinstance(error, Fenced):
            self._on_fatal(error)
            return
        logger.error("a write of %d blocks failed: %s", len(group), error)
        if not retried:
            # The failed file was ended at its durable offset; the same blocks go once into a new one.
            self._commit(group, retried=True)
            return
        refusal = BrokerPersistenceError(f"the partition could not store the message: {error}")
        for producer, header, _, carrier, _ in group:
            if carrier is not None:
                carrier.release(header.total_length)
            current = self._producers.current(producer)
            if current is not None:
                self._refuse(current, header.entry_seq, refusal)
        self._next()
