"""Gathers the messages for one partition into blocks.

The builder is pure: its caller does the sending.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.open_batch import OpenBatch
from pulsar_ray.client.producer.blocks.sealed_batch import SealedBatch, SendCallback
from pulsar_ray.clock import Clock, SystemClock
from pulsar_ray.errors import MessageTooBig
from pulsar_ray.format.block import (
    BLOCK_HEADER_SIZE,
    MAX_BLOCK_SIZE,
    MAX_MESSAGE_SIZE,
    MAX_ROWS,
    check_block_size,
)
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.compression import MAX_UNCOMPRESSED_LENGTH, compress
from pulsar_ray.format.delivery_times import check_delay
from pulsar_ray.model.enums import BatchingType
from pulsar_ray.session.requests import ProducerOpened

OPENED = 1
"""The message is the first of a block.

A timer for `deadline_ms`, or the next write, has to take that block.
"""
SEALED = 2
"""At least one block was finished; `take_sealed` gives it."""
REFUSED = 4
"""The message was not added: the next partition has the turn.

The batch that it would have gone with is finished.
"""

METADATA_ALLOWANCE = MAX_BLOCK_SIZE - MAX_MESSAGE_SIZE
_MAX_BLOCK_BYTES = 1024 * 1024
_ALONE_BYTES = (
    64 * 1024
)  # from here on a message without batching is written as it is, not copied into a block
_ARROW_BYTES = 1024  # an Arrow message around its rows
_ROW_BYTES = 48  # offsets, validity, ids and times of one row in all columns and in the header
_FIELD_BYTES = 16  # around a key, property or time


@dataclass(frozen=True)
class BatchLimits:
    """The limits that finish a block.

    `max_bytes` is a sum of payloads that is never exceeded, except by one message alone.
    """

    is_batching: bool
    max_messages: int = 1000
    max_bytes: int = 131_072
    max_delay_ms: int = 10
    is_key_based: bool = False


class BatchBuilder:
    """Holds the open and the finished blocks of one producer on one partition.

    It is not thread-safe: the producer's lock guards it.

    With batching a block is finished by count, bytes (over all keys together if key-based), by `seal_due` or
    by `seal`. Without it messages gather for as long as the caller does not write: every message stays an
    entry.

    Messages are added `in_turn` if they are here because it is the partition's turn. The turn is over when
    the batch with such messages is finished, whatever finishes it: one in turn that does not fit is refused.
    """

    __slots__ = (
        "_alone_bytes",
        "_bytes",
        "_clock",
        "_codec",
        "_count",
        "_deadline_ms",
        "_delays",
        "_entry_limit",
        "_extra",
        "_has_given_ids",
        "_has_turn",
        "_is_batching",
        "_keyed",
        "_limit",
        "_limits",
        "_max_bytes",
        "_max_message_size",
        "_max_rows",
        "_name_bytes",
        "_next_id",
        "_rows",
        "is_open",
        "max_delivery_delay_ms",
        "on_turn_over",
        "sealed",
    )

    def __init__(
        self,
        limits: BatchLimits,
        clock: Clock,
        *,
        first_sequence_id: int = 0,
        codec: int = 0,
        max_message_size: int = MAX_MESSAGE_SIZE,
        producer_name: str = "",
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._codec = codec
        self._is_batching = limits.is_batching
        self._name_bytes = len(producer_name.encode()) + _FIELD_BYTES
        # The open block; key-based batching has one per key instead, in the order of their first messages.
        self._rows: OpenBatch | None = None
        self._keyed: dict[str | None, OpenBatch] | None = None
        if limits.is_batching and limits.is_key_based:
            self._keyed = {}
        self._next_id = first_sequence_id
        self._bytes = 0  # payloads of all open blocks
        self._extra = 0  # keys, properties and the like of all open blocks
        self._count = 0  # messages added by `add_message`; `add` leaves it to the rows
        self._deadline_ms = 0
        # Whether the messages that are open per key have been given ids: they are of one key then.
        self._has_given_ids = False
        self._delays = False  # whether the open messages are delayed ones of a batching producer
        self._has_turn = False  # whether messages in turn are open
        self.on_turn_over: Callable[[], None] = _nobody_waits
        """Called when a batch with messages in turn was finished."""
        self.is_open = False
        """Whether a block is open, and `seal` has something to finish."""
        self.sealed: list[SealedBatch] = []
        """The finished blocks, for `take_sealed`."""
        self.max_delivery_delay_ms = 0
        """Delayed messages may be so long ahead; 0 is no limit."""
        self.set_max_message_size(max_message_size)

    def set_max_message_size(self, max_message_size: int) -> None:
        """Set the size that the partition takes, for messages added from now on."""
        self._max_message_size = max_message_size
        rows = min(self._limits.max_messages, MAX_ROWS) if self._is_batching else MAX_ROWS
        self._max_rows = max(1, min(rows, max_message_size // 128))
        # A whole block must stay below the limit, whatever its rows' columns need beside the payloads.
        reserve = _ARROW_BYTES + _ROW_BYTES * self._max_rows
        # Below 0 not even an empty message shares a block.
        self._entry_limit = min(_MAX_BLOCK_BYTES, max_message_size - reserve)
        self._max_bytes = self._limits.max_bytes if self._is_batching else self._entry_limit
        self._alone_bytes = self._max_bytes if self._is_batching else _ALONE_BYTES
        self._limit = min(self._max_bytes, self._entry_limit - self._extra)

    def add(self, value: bytes | None, callback: SendCallback | None, in_turn: bool = False) -> int:
        """Add a message that is nothing but a value; as `add_message`, quicker."""
        if value is None or self._keyed is not None or self._delays:
            return self.add_message(value, callback, in_turn=in_turn)
        size = len(value)
        total = self._bytes + size
        if total >= self._limit or size > self._alone_bytes:
            return self.add_message(value, callback, in_turn=in_turn)
        flags = 0
        rows = self._rows
        if rows is None:
            rows = self._open_rows()
            flags = OPENED
        self._bytes = total
        values = rows.values
        values.append(value)
        rows.callbacks.append(callback)
        if in_turn:
            self._has_turn = True
        if len(values) >= self._max_rows:
            self.seal()
            return SEALED
        return flags

    def add_delayed(
        self, value: bytes | None, callback: SendCallback | None, deliver_at: int, in_turn: bool = False
    ) -> int:
        """Add a message that is nothing but a value and a time; as `add_message`, quicker.

        If the time has passed the message is not delayed. One that passes while the block is open may be
        stored.
        """
        rows = self._rows
        if (
            rows is None
            or value is None
            or deliver_at <= rows.publish_time_ms
            or self._is_batching
            or self.max_delivery_delay_ms
        ):
            return self._add_if_delayed(value, callback, deliver_at, in_turn)
        size = len(value)
        total = self._bytes + size
        if total >= self._limit or size > self._alone_bytes:
            return self._add_if_delayed(value, callback, deliver_at, in_turn)
        self._bytes = total
        values, times = rows.values, rows.delivery_times
        if times is None or len(times) < len(values):
            times = rows.undelayed_before()
        times.append(deliver_at)
        values.append(value)
        rows.callbacks.append(callback)
        if len(values) >= self._max_rows:
            self.seal()
            return SEALED
        return 0

    def _add_if_delayed(
        self, value: bytes | None, callback: SendCallback | None, deliver_at: int, in_turn: bool
    ) -> int:
        if deliver_at <= self._clock.now_ms():
            return self.add(value, callback, in_turn)
        return self.add_message(value, callback, deliver_at=deliver_at, in_turn=in_turn)

    def id_alone(self, value: bytes) -> int | None:
        """Take the sequence id of a message that becomes its own block at once.

        The message is not added: the caller encodes it. None if it has to be added, because something is open
        or finished, or its size has to be looked at.
        """
        if self.is_open or self.sealed or not len(value) < min(self._alone_bytes, self._limit):
            return None
        sequence_id = self._next_id
        self._next_id += 1
        return sequence_id

    def add_message(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        key: str | None = None,
        ordering_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        *,
        in_turn: bool = False,
    ) -> int:
        """Add a checked message; None is a tombstone.

        Without a sequence id it gets the highest so far + 1; with key-based batching when its batch is
        finished, so that a batch has consecutive ones. With batching a delayed message ends
        the open batch, and shares its own block with delayed ones alone, in which each is an entry.

        Returns OPENED, SEALED and REFUSED as they apply. Raises MessageTooBig, and then nothing was added, if
        the message, compressed if there is a codec, is above what the partition takes; likewise
        NotAllowedError for one that is delayed too long.
        """
        size = 0 if value is None else len(value)
        extra = _extra_bytes(key, ordering_key, properties, event_time)
        if deliver_at is not None:
            extra += _FIELD_BYTES
            if self.max_delivery_delay_ms:
                check_delay(deliver_at, self._clock.now_ms(), self.max_delivery_delay_ms)
        packed = self._checked(value, size, extra)
        fields = (value, callback, key, ordering_key, properties, event_time, sequence_id, deliver_at)
        flags = 0
        if self._is_batching and self.is_open and self._delays != (deliver_at is not None):
            is_refused = in_turn and self._has_turn
            self.seal()
            if is_refused:
                return SEALED | REFUSED
            flags = SEALED
        total = self._bytes + size
        is_alone = size > self._alone_bytes or size + extra > self._entry_limit
        if (
            is_alone
            or total > self._max_bytes
            or total + self._extra + extra > self._entry_limit
            or self._breaks_order(sequence_id, ordering_key or key or None)
        ):
            is_refused = in_turn and self._has_turn
            flags |= SEALED if self.seal() else 0
            if is_refused:
                return SEALED | REFUSED
        self._has_turn = self._has_turn or in_turn
        if is_alone:
            self._add_alone(fields, size, extra, packed)
            return SEALED
        flags |= self._append(fields)
        self._bytes += size
        self._extra += extra
        self._limit = min(self._max_bytes, self._entry_limit - self._extra)
        if self._bytes >= self._limit or self.message_count >= self._max_rows:
            self.seal()
            return SEALED
        return flags

    def _checked(self, value: bytes | None, size: int, extra: int) -> Buffer | None:
        """Compress the payload if only that can say whether it is small enough.

        Returns None if nothing had to be compressed. Raises MessageTooBig.
        """
        around = BLOCK_HEADER_SIZE + self._name_bytes + extra
        packed: Buffer | None = None
        stored = size
        if size > self._max_message_size and self._codec and value is not None:
            if size > MAX_UNCOMPRESSED_LENGTH:
                raise MessageTooBig(f"{size} bytes uncompressed; consumers take {MAX_UNCOMPRESSED_LENGTH}")
            packed = compress(self._codec, value)
            stored = len(packed)
        limit = self._max_message_size
        check_block_size(stored, stored + around, limit, limit + METADATA_ALLOWANCE)
        return packed

    def _add_alone(self, fields: _Fields, size: int, extra: int, packed: Buffer | None) -> None:
        rows = OpenBatch(self._clock.now_ms(), self._next_id)
        rows.append(*fields)
        self._next_id = rows.next_sequence_id()
        is_batching = self._is_batching and fields[-1] is None
        # Where an Arrow batch of one would be too large, the message is stored as if unbatched.
        fits = size + extra + _ARROW_BYTES + _ROW_BYTES <= self._max_message_size
        sealed = rows.seal(size, is_batch=is_batching and fits and packed is None)
        sealed.packed = packed
        self.sealed.append(sealed)
        self._end_turn()

    def _append(self, fields: _Fields) -> int:
        opened = 0 if self.is_open else OPENED
        if self._keyed is None or fields[-1] is not None:
            self._delays = self._is_batching and fields[-1] is not None
            (self._rows or self._open_rows()).append(*fields)
            return opened
        if opened:
            self._begin()
        batching_key = fields[3] or fields[2] or None
        rows = self._keyed.get(batching_key)
        if rows is None:
            rows = self._keyed[batching_key] = OpenBatch(self._clock.now_ms(), self._next_id)
        rows.append(*fields)
        self._has_given_ids = fields[6] is not None
        self._count += 1
        return opened

    def _breaks_order(self, sequence_id: int | None, batching_key: str | None) -> bool:
        """Whether a message cannot share an open block, in which sequence ids rise.

        Nor do those of one block lie between those of another: a partition that knows the highest id of a
        producer knows then what it has stored.
        """
        if self._keyed is None or self._rows is not None:
            if sequence_id is None or self._rows is None:
                return False
            return sequence_id <= self._rows.last_sequence_id()
        if not self._keyed:
            return False
        if sequence_id is None:
            return self._has_given_ids
        rows = self._keyed.get(batching_key)
        is_run = self._has_given_ids and rows is not None
        return not is_run or sequence_id <= rows.last_sequence_id()  # type: ignore[union-attr]

    def _open_rows(self) -> OpenBatch:
        self._begin()
        self._rows = OpenBatch(self._clock.now_ms(), self._next_id)
        return self._rows

    def _begin(self) -> None:
        self.is_open = True
        if self._is_batching:
            self._deadline_ms = self._clock.monotonic_ms() + self._limits.max_delay_ms

    @property
    def message_count(self) -> int:
        """Messages in open blocks."""
        return self._count if self._rows is None else len(self._rows.values)

    @property
    def deadline_ms(self) -> int | None:
        """The monotonic time that seals the open batch; None without one."""
        return self._deadline_ms if self.is_open else None

    @property
    def next_sequence_id(self) -> int:
        """The id of the next message without an explicit one."""
        return self._next_id if self._rows is None else self._rows.next_sequence_id()

    def seal(self) -> bool:
        """Finish what is open; False if nothing is.

        A flush or a synchronous send asks for it, or a caller that can write now.
        """
        if self._rows is not None:
            self._next_id = self._rows.next_sequence_id()
            self.sealed.append(self._rows.seal(self._bytes, is_batch=self._is_batching and not self._delays))
            self._rows = None
            self._delays = False
        elif self._keyed:
            for rows in self._keyed.values():
                if not self._has_given_ids:
                    rows.number_from(self._next_id)
                self._next_id = max(self._next_id, rows.next_sequence_id())
                payload_bytes = sum(len(value) for value in rows.values if value is not None)
                self.sealed.append(rows.seal(payload_bytes, is_batch=True))
            self._keyed = {}
        else:
            return False
        self.is_open = False
        self._bytes = self._extra = self._count = 0
        self._limit = min(self._max_bytes, self._entry_limit)
        self._end_turn()
        return True

    @property
    def has_turn(self) -> bool:
        """Whether messages are open that came in turn."""
        return self._has_turn

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self.on_turn_over()

    def seal_due(self, now_ms: int) -> bool:
        """Finish the open batch if its first message has waited for the delay.

        `now_ms` is monotonic.
        """
        return self.is_open and now_ms >= self._deadline_ms and self.seal()

    def skip_sequence_ids(self, count: int) -> None:
        """That many ids are taken by messages encoded elsewhere; nothing may be open."""
        self._next_id += count

    def take_sequence_id(self, sequence_id: int | None) -> int:
        """Take the id of one message that is encoded elsewhere, the next one or `sequence_id`.

        Nothing may be open.
        """
        taken = self._next_id if sequence_id is None else sequence_id
        self._next_id = max(self._next_id, taken + 1)
        return taken

    def take_sealed(self) -> list[SealedBatch]:
        """The finished blocks in the order in which they have to be sent."""
        sealed = self.sealed
        self.sealed = []
        return sealed


def builder_for(options: ProducerOptions, opened: ProducerOpened) -> BatchBuilder:
    """The builder of a producer that a partition has opened."""
    limits = BatchLimits(
        options.batching_enabled,
        options.batching_max_messages,
        options.batching_max_allowed_size_in_bytes,
        options.batching_max_publish_delay_ms,
        options.batching_type == BatchingType.KeyBased,
    )
    return BatchBuilder(
        limits,
        SystemClock(),
        first_sequence_id=options.first_sequence_id(opened.last_sequence_id),
        codec=int(options.compression_type),
        max_message_size=opened.max_message_size,
        producer_name=opened.name,
    )


_Fields = tuple[
    bytes | None,
    SendCallback | None,
    str | None,
    str | None,
    Mapping[str, str] | None,
    int | None,
    int | None,
    int | None,
]


def _nobody_waits() -> None:
    """There are no turns: one partition, or none is preferred."""


def _extra_bytes(
    key: str | None, ordering_key: str | None, properties: Mapping[str, str] | None, event_time: int | None
) -> int:
    """Sum an upper bound of a message's fields.

    They stand in a block's header or in its columns.
    """
    total = 0 if event_time is None else _FIELD_BYTES
    for text in (key, ordering_key):
        if text is not None:
            total += _FIELD_BYTES + len(text.encode())
    if properties:
        total += _FIELD_BYTES
        for name, value in properties.items():
            total += _FIELD_BYTES + len(name.encode()) + len(value.encode())
    return total
