"""Publishing at the partition: admit blocks, write them in groups, answer when they are durable.

Everything that arrived in one turn of the owner loop becomes one write and one fdatasync on the disk thread;
what arrives meanwhile becomes the next one. A receipt follows the durable write and the epoch check after it,
never anything earlier. Small writes to a disk that has proved quick are waited for instead (ADR 0009).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from pulsar_ray.broker.partition.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.producer_endpoint import ProducerEndpoint
from pulsar_ray.broker.partition.publish_gate import PublishGate
from pulsar_ray.broker.partition.publish_throttle import PublishThrottle
from pulsar_ray.broker.partition.quick_disk import SMALL_WRITE_BYTES, QuickDisk, is_small
from pulsar_ray.broker.partition.waiting_blocks import Admitted, WaitingBlocks
from pulsar_ray.clock import Clock
from pulsar_ray.config import ENTRY_OVERHEAD_BYTES
from pulsar_ray.errors import (
    BrokerPersistenceError,
    Fenced,
    ProtocolError,
    PulsarException,
    SessionLost,
)
from pulsar_ray.format.block import ARROW, BlockHeader, check_block_size, parse_block_header, verify_block
from pulsar_ray.managed_ledger.log.commit import AppendResult
from pulsar_ray.managed_ledger.log.producer_incarnations import (
    Forgotten,
    NeverStored,
    New,
    ProducerIncarnations,
    Repeat,
)
from pulsar_ray.model.position import Position
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.packet_encoder import PacketEncoder
from pulsar_ray.session.requests import PublishFailed, Receipt, encode_request
from pulsar_ray.session.session_table import Session

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Log(Protocol):
    """Where blocks are appended: a managed ledger, or one that keeps nothing."""

    epoch: int
    incarnations: ProducerIncarnations

    @property
    def last_position(self) -> Position: ...

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


class PublishIntake:
    """Owns a partition's stream of commits, from admitted blocks to receipts.

    Runs on the owner loop.

    `on_durable` is called for each commit, `on_fatal` if the log belongs to another owner by now.
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
        on_durable: Callable[[AppendResult], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._ledger = ledger
        self._producers = producers
        self._policies = policies
        self._gate = gate
        self._clock = clock
        self._loop = loop
        self._disk = disk
        self._on_durable = on_durable
        self._on_fatal = on_fatal
        self._waiting = waiting
        self._throttle = throttle
        self._receipt = PacketEncoder(Receipt)
        self._committing = False
        self._turn_scheduled = False
        self._is_awaited = False
        self._quick_disk = QuickDisk()
        self.traffic = IncomingTraffic(clock.monotonic_ms())
        self.commits = 0

    @property
    def is_idle(self) -> bool:
        """Whether no block is admitted that is not answered yet."""
        return not (self._committing or self._turn_scheduled or self._waiting.size_bytes)

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
        self._is_awaited |= is_awaited
        offset, size = 0, len(body)
        while offset < size:
            header = parse_block_header(body, offset)
            end = offset + header.total_length
            if end > size:
                raise ProtocolError(
                    f"a block of {header.total_length} bytes in {size - offset} bytes of packet"
                )
            verify_block(body, offset, header)
            self._admit(producer, header, body[offset:end])
            offset = end

    def _admit(self, producer: ProducerEndpoint, header: BlockHeader, block: memoryview) -> None:
        seq = header.entry_seq
        if header.incarnation != producer.incarnation:
            raise ProtocolError(
                f"a block of incarnation {header.incarnation} on a producer of {producer.incarnation}"
            )
        if seq < producer.next_seq:
            self._answer_repeat(producer, header)
            return
        if seq > producer.next_seq:
            raise SessionLost(
                f"entry_seq {producer.next_seq} is missing before {seq}: attach again and resend"
            )
        producer.next_seq = seq + header.entries
        refusal = self._refusal(header)
        if refusal is not None:
            self._refuse(producer, seq, refusal)
            return
        carrier = producer.session.carrier
        if carrier is not None:
            carrier.retain(header.total_length)
        self._waiting.append((producer, header, block, carrier))
        if self._throttle.limit is not None:
            self._throttle.charge(producer.session, header.message_count, header.total_length)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_of_turn)

    def _refusal(self, header: BlockHeader) -> PulsarException | None:
        payload, total = header.payload_length, header.total_length
        policies = self._policies
        if payload > policies.max_message_size or total > policies.max_frame_bytes:
            limit = policies.max_message_size
            with_columns = (limit + ENTRY_OVERHEAD_BYTES) * header.message_count
            if header.payload_format == ARROW and payload <= with_columns:
                # Messages became a batch before their producer knew the limit of now: none of them need be
                # too large.
                limit = payload
            try:
                check_block_size(payload, total, limit, policies.max_frame_bytes)
            except PulsarException as error:
                return error
        return self._gate.refusal

    def _answer_repeat(self, producer: ProducerEndpoint, header: BlockHeader) -> None:
        known = self._ledger.incarnations.classify(header.incarnation, header.entry_seq, header.entries)
        # A repeat that is not durable yet is in the group being written: its receipt follows from there.
        if isinstance(known, Repeat) and known.position <= self._ledger.last_position:
            row = (producer.producer_id, header.entry_seq, header.entries, *known.position)
            producer.session.send(self._receipt.encode(([row],)))
        elif isinstance(known, Forgotten):
            refusal = BrokerPersistenceError("nobody remembers whether the partition stored this message")
            self._refuse(producer, header.entry_seq, refusal)
        elif isinstance(known, NeverStored) or (isinstance(known, New) and not self._waiting.has(header)):
            # It was refused, and the refusal lost with its carrier. Later blocks may be stored already.
            not_stored = "the partition refused this message before: it was not stored"
            reason = self._refusal(header) or BrokerPersistenceError(not_stored)
            self._refuse(producer, header.entry_seq, reason)

    def _refuse(self, producer: ProducerEndpoint, entry_seq: int, error: PulsarException) -> None:
        refused = PublishFailed(producer.producer_id, entry_seq, type(error).__name__, error.text)
        producer.session.send(encode_request(refused))

    # --- commits ----------------------------------------------------------------------------------

    def _end_of_turn(self) -> None:
        self._turn_scheduled = False
        if not self._committing:
            self._next()

    def _next(self) -> None:
        self._committing = self._waiting.size_bytes > 0
        if self._committing:
            self._commit(self._waiting.take_group(), retried=False)

    def _commit(self, group: list[Admitted], *, retried: bool) -> None:
        is_awaited, self._is_awaited = self._is_awaited, False
        blocks = []
        messages = 0
        for _, header, block, _ in group:
            blocks.append((header, (block,)))
            messages += header.message_count
        commit = self._ledger.begin_append(blocks, self._clock.now_ms())
        is_lone = is_small(commit.total_bytes, messages)

        def done(seconds: float | None, error: BaseException | None) -> None:
            if error is not None:
                self._ledger.fail_append(commit)
                self._failed(group, error, retried=retried)
                return
            if is_lone and seconds is not None:
                self._quick_disk.took(seconds)
            self._finish(group, self._ledger.finish_append(commit), is_awaited=is_awaited)

        if not is_lone or not self._quick_disk.is_trusted or not self._disk.is_idle:
            self._disk.submit(partial(_run, commit), done)
            return
        try:
            seconds = _run(commit)
        except BaseException as error:  # noqa: BLE001 - as from the disk thread
            done(None, error)
        else:
            done(seconds, None)

    def _finish(self, group: list[Admitted], result: AppendResult, *, is_awaited: bool) -> None:
        # Waiting blocks go to the disk thread before this group is answered, so that the disk is not idle
        # meanwhile; but not a write that would be waited for here, whose answers must come behind.
        is_disk_busy = self._waiting.size_bytes > SMALL_WRITE_BYTES
        if is_disk_busy:
            self._next()
        if not is_awaited:
            # The process written to first tends to run first, often on this very processor: dispatchers.
            self._on_durable(result)
        rows: dict[Session, list[tuple[int, int, int, int, int]]] = {}
        messages = size = 0
        for (producer, header, _, carrier), position in zip(group, result.positions, strict=True):
            length = header.total_length
            messages += header.message_count
            size += length
            producer.traffic.stored(header.message_count, length)
            if carrier is not None:
                carrier.release(length)
            current = self._producers.current(producer)
            if current is not None:
                receipt = (current.producer_id, header.entry_seq, header.entries, position[0], position[1])
                rows.setdefault(current.session, []).append(receipt)
        self.traffic.stored(messages, size)
        for session, blocks in rows.items():
            session.send(self._receipt.encode((blocks,)))
        if is_awaited:
            self._on_durable(result)
        self.commits += 1
        if not is_disk_busy:
            self._next()

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
        for producer, header, _, carrier in group:
            if carrier is not None:
                carrier.release(header.total_length)
            current = self._producers.current(producer)
            if current is not None:
                self._refuse(current, header.entry_seq, refusal)
        self._next()


def _run(commit: Any) -> float:
    """Write; the seconds it took."""
    start = time.perf_counter()
    commit.run()
    return time.perf_counter() - start
