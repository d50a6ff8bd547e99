"""Gathers the messages for one partition into blocks.

The builder is pure: its caller does the sending.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.batch import Batch
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.send_callbacks import SendCallback
from pulsar_ray.clock import Clock
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

OPENED: Final = 1
"""The message is the first of a block.

A timer for `deadline_ms`, or the next write, has to take that block.
"""
SEALED: Final = 2
"""At least one block was finished; `take_sealed` gives it."""
REFUSED: Final = 4
"""The message was not added: the next partition has the turn.

The batch that it would have gone with is finished.
"""

METADATA_ALLOWANCE = MAX_BLOCK_SIZE - MAX_MESSAGE_SIZE
_MAX_BLOCK_BYTES = 1024 * 1024
_ALONE_BYTES = (
    64 * 1024
)  # from here on a message without batching is written as it is, not copied into a block
_ARROW_BYTES: Final = 1024  # an Arrow message around its rows
_ROW_BYTES: Final = 48  # offsets, validity, ids and times of one row in all columns and in the header
_ENCRYPTION_BYTES: Final = (
    2560  # a data key that an RSA key of up to 16,384 bits has encrypted, and its nonce
)
_FIELD_BYTES: Final = 16  # around a key, property or time


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

    Entries of an encrypted block have no keys that a dispatcher could see: an entry has its own block then.

    Messages are added `in_turn` if they are here because it is the partition's turn. The turn is over when
    the batch with such messages is finished, whatever finishes it: one in turn that does not fit is refused.
    """

    __slots__ = (
        "_clock",
        "_codec",
        "_count",
        "_deadline_ms",
        "_delays",
        "_entry_limit",
        "_extra",
        "_has_given_ids",
        "_is_batching",
        "_is_encrypted",
        "_keyed",
        "_limits",
        "_max_bytes",
        "_max_message_size",
        "_name_bytes",
        "_next_id",
        "_rows",
        "alone_bytes",
        "bytes",
        "has_turn",
        "is_open",
        "limit",
        "max_delivery_delay_ms",
        "max_rows",
        "on_turn_over",
        "plain",
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
        fields_bytes: int = 0,
        is_encrypted: bool = False,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._codec = codec
        self._is_batching = limits.is_batching
        self._is_encrypted = is_encrypted
        self._name_bytes = max(len(producer_name.encode()), fields_bytes) + _FIELD_BYTES
        # The open block; key-based batching has one per key instead, in the order of their first messages.
        self._rows: Batch | None = None
        self._keyed: dict[str | None, Batch] | None = None
        if limits.is_batching and limits.is_key_based:
            self._keyed = {}
        self._next_id = first_sequence_id
        self._extra = 0  # keys, properties and the like of all open blocks
        self._count = 0  # messages that are open per key
        self._deadline_ms = 0
        # Whether the messages that are open per key have been given ids: they are of one key then.
        self._has_given_ids = False
        self._delays = False  # whether the open messages are delayed ones of a batching producer
        self.on_turn_over: Callable[[], None] = _nobody_waits
        """Called when a batch with messages in turn was finished."""
        self.has_turn = False
        """Whether messages are open that came in turn."""
        self.plain: Batch | None = None
        """The open block that plain values may be appended to, as `add` would.

        `bytes` then counts it and stays below `limit`; it is no larger than `alone_bytes`, and `max_rows`
        messages are sealed.
        """
        self.bytes = 0
        """The payloads of all open blocks."""
        self.is_open = False
        """Whether a block is open, and `seal` has something to finish."""
        self.sealed: list[Batch] = []
        """The finished blocks, for `take_sealed`."""
        self.max_delivery_delay_ms = 0
        """Delayed messages may be so long ahead; 0 is no limit."""
        self.set_max_message_size(max_message_size)

    def set_max_message_size(self, max_message_size: int) -> None:
        """Set the size that the partition takes, for messages added from now on."""
        self._max_message_size = max_message_size
        rows = min(self._limits.max_messages, MAX_ROWS) if self._is_batching else MAX_ROWS
        if self._is_encrypted and not self._is_batching:
            rows = 1
        self.max_rows = max(1, min(rows, max_message_size // 128))
        # A whole block must stay below the limit, whatever its rows' columns need beside the payloads.
        reserve = _ARROW_BYTES + _ROW_BYTES * self.max_rows
        # Below 0 not even an empty message shares a block.
        self._entry_limit = min(_MAX_BLOCK_BYTES, max_message_size - reserve)
        self._max_bytes = self._limits.max_bytes if self._is_batching else self._entry_limit
        self.alone_bytes = self._max_bytes if self._is_batching else _ALONE_BYTES
        self.limit = min(self._max_bytes, self._entry_limit - self._extra)

    def add(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: MessageFields | None = None,
        in_turn: bool = False,
    ) -> int:
        """Add a checked message; None is a tombstone.

        Without a sequence id it gets the highest so far + 1; with key-based batching when its batch is
        finished, so that a batch has consecutive ones. With batching a delayed message ends
        the open batch, and shares its own block with delayed ones alone, in which each is an entry. A message
        whose time has passed is not delayed; one that passes while the block is open may be stored.

        Returns OPENED, SEALED and REFUSED as they apply. Raises MessageTooBig, and then nothing was added, if
        the message, compressed if there is a codec, is above what the partition takes; likewise
        NotAllowedError for one that is delayed too long.
        """
        size = 0 if value is None else len(value)
        extra = 0
        is_delayed = False
        if fields is not None:
            if (
                self._rows is not None
                and fields[:5] == _ONLY_DELAYED
                and self._add_delayed(value, callback, fields)
            ):
                return 0
            if fields.deliver_at is not None:
                is_delayed = self._is_delayed(fields.deliver_at)
                fields = fields if is_delayed else fields._replace(deliver_at=None)
            extra = _extra_bytes(fields)
        packed: Buffer | None = None
        around = BLOCK_HEADER_SIZE + self._name_bytes + extra
        if size > self._max_message_size or around > METADATA_ALLOWANCE:
            packed = self._checked(value, size, around)
        is_alone = size > self.alone_bytes or size + extra > self._entry_limit
        flags = 0
        if self.is_open and (is_alone or not self._goes_with(size, extra, fields, is_delayed)):
            is_refused = in_turn and self.has_turn
            self.seal()
            if is_refused:
                return SEALED | REFUSED
            flags = SEALED
        if in_turn:
            self.has_turn = True
        if is_alone:
            self._add_alone(value, callback, fields, size, extra, packed)
            return SEALED
        if not self.is_open:
            self._open(is_delayed=is_delayed)
            flags |= OPENED
        rows = self._rows or self._rows_of_key(fields)
        rows.append(value, callback, fields)
        self.bytes += size
        if extra:
            self._extra += extra
            self.limit = min(self._max_bytes, self._entry_limit - self._extra)
        count = len(rows.values) if rows is self._rows else self._count
        if self.bytes >= self.limit or count >= self.max_rows:
            self.seal()
            return SEALED
        return flags

    def _add_delayed(self, value: bytes | None, callback: SendCallback | None, fields: MessageFields) -> bool:
        """Append a message of nothing but a value and a time, quicker than others.

        False, and nothing was added, if anything else is to be looked at.
        """
        rows, deliver_at = self._rows, fields.deliver_at
        if (
            rows is None
            or value is None
            or deliver_at is None
            or self._is_batching
            or self.max_delivery_delay_ms
        ):
            return False
        size, row = len(value), len(rows.values)
        total = self.bytes + size
        if (
            deliver_at <= rows.publish_time_ms
            or total >= self.limit
            or size > self.alone_bytes
            or row + 1 >= self.max_rows
        ):
            return False
        self.bytes = total
        times = rows.delivery_times
        if times is None or len(times) < row:
            times = rows.undelayed_before()
        times.append(deliver_at)
        rows.values.append(value)
        rows.callbacks.append(callback)
        return True

    def _is_delayed(self, deliver_at: int) -> bool:
        """Whether a message is not due yet. Raises NotAllowedError if it is delayed too long."""
        rows = self._rows
        if rows is not None and not (self._is_batching or self.max_delivery_delay_ms):
            # A look at the clock costs a tenth of what the whole message does.
            return deliver_at > rows.publish_time_ms
        now_ms = self._clock.now_ms()
        if deliver_at > now_ms and self.max_delivery_delay_ms:
            check_delay(deliver_at, now_ms, self.max_delivery_delay_ms)
        return deliver_at > now_ms

    def id_alone(self, value: bytes, fields: MessageFields | None) -> int | None:
        """Take the sequence id of a message that becomes its own block at once.

        The message is not added: the caller encodes it. None if it has to be added, because something is open
        or finished, or its id, time or size has to be looked at.
        """
        if self.is_open or self.sealed:
            return None
        extra = 0
        if fields is not None:
            if fields.sequence_id is not None or fields.deliver_at is not None:
                return None
            extra = _extra_bytes(fields)
            if BLOCK_HEADER_SIZE + self._name_bytes + extra > METADATA_ALLOWANCE:
                return None
        if len(value) + extra >= min(self.alone_bytes, self.limit):
            return None
        sequence_id = self._next_id
        self._next_id += 1
        return sequence_id

    def _checked(self, value: bytes | None, size: int, around: int) -> Buffer | None:
        """Compress the payload if only that can say whether it is small enough.

        Returns None if nothing had to be compressed. Raises MessageTooBig.
        """
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

    def _add_alone(
        self,
        value: bytes | None,
        callback: SendCallback | None,
        fields: MessageFields | None,
        size: int,
        extra: int,
        packed: Buffer | None,
    ) -> None:
        rows = Batch(self._clock.now_ms(), self._next_id)
        rows.append(value, callback, fields)
        self._next_id = rows.next_sequence_id()
        is_delayed = fields is not None and fields.deliver_at is not None
        # Where an Arrow batch of one would be too large, the message is stored as if unbatched.
        fits = size + extra + _ARROW_BYTES + _ROW_BYTES <= self._max_message_size
        is_batch = self._is_batching and not is_delayed and fits and packed is None
        rows.seal(size, is_batch=is_batch, packed=packed)
        self.sealed.append(rows)
        self._end_turn()

    def _goes_with(self, size: int, extra: int, fields: MessageFields | None, is_delayed: bool) -> bool:
        """Whether a message can share the open block, in which sequence ids rise.

        With key-based batching, ids of one block do not lie between those of another either: a partition that
        knows the highest id of a producer knows then what it has stored.
        """
        total = self.bytes + size
        if total > self._max_bytes or total + self._extra + extra > self._entry_limit:
            return False
        if self._is_batching and (self._delays != is_delayed or (is_delayed and self._is_encrypted)):
            return False
        sequence_id = None if fields is None else fields.sequence_id
        if self._rows is not None:
            return sequence_id is None or sequence_id > self._rows.newest_sequence_id()
        if sequence_id is None:
            return not self._has_given_ids
        rows = self._keyed.get(_batching_key(fields))  # type: ignore[union-attr]
        return self._has_given_ids and rows is not None and sequence_id > rows.newest_sequence_id()

    def _rows_of_key(self, fields: MessageFields | None) -> Batch:
        assert self._keyed is not None
        key = _batching_key(fields)
        rows = self._keyed.get(key)
        if rows is None:
            rows = self._keyed[key] = Batch(self._clock.now_ms(), self._next_id)
        self._has_given_ids = fields is not None and fields.sequence_id is not None
        self._count += 1
        return rows

    def _open(self, *, is_delayed: bool) -> None:
        self.is_open = True
        if self._is_batching:
            self._deadline_ms = self._clock.monotonic_ms() + self._limits.max_delay_ms
            self._delays = is_delayed
        if self._keyed is None or is_delayed:
            self._rows = Batch(self._clock.now_ms(), self._next_id)
            if not self._delays:
                self.plain = self._rows

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
            self._rows.seal(self.bytes, is_batch=self._is_batching and not self._delays)
            self.sealed.append(self._rows)
            self._rows = self.plain = None
            self._delays = False
        elif self._keyed:
            for rows in self._keyed.values():
                if not self._has_given_ids:
                    rows.number_from(self._next_id)
                self._next_id = max(self._next_id, rows.next_sequence_id())
                payload_bytes = sum(len(value) for value in rows.values if value is not None)
                rows.seal(payload_bytes, is_batch=True)
                self.sealed.append(rows)
            self._keyed = {}
        else:
            return False
        self.is_open = False
        self.bytes = self._extra = self._count = 0
        self.limit = min(self._max_bytes, self._entry_limit)
        self._end_turn()
        return True

    def _end_turn(self) -> None:
        if self.has_turn:
            self.has_turn = False
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

    def take_sealed(self) -> list[Batch]:
        """The finished blocks in the order in which they have to be sent."""
        sealed = self.sealed
        self.sealed = []
        return sealed


def builder_for(
    options: ProducerOptions, opened: ProducerOpened, clock: Clock, fields_bytes: int
) -> BatchBuilder:
    """The builder of a producer that a partition has opened."""
    limits = BatchLimits(
        options.batching_enabled,
        options.batching_max_messages,
        options.batching_max_allowed_size_in_bytes,
        options.batching_max_publish_delay_ms,
        options.batching_type == BatchingType.KeyBased,
    )
    name = options.encryption_key
    return BatchBuilder(
        limits,
        clock,
        first_sequence_id=options.first_sequence_id(opened.last_sequence_id),
        codec=int(options.compression_type),
        max_message_size=opened.max_message_size,
        producer_name=opened.name,
        fields_bytes=fields_bytes if name is None else fields_bytes + len(name.encode()) + _ENCRYPTION_BYTES,
        is_encrypted=name is not None,
    )


_ONLY_DELAYED = (None,) * 5


def _nobody_waits() -> None:
    """There are no turns: one partition, or none is preferred."""


def _batching_key(fields: MessageFields | None) -> str | None:
    return None if fields is None else fields.ordering_key or fields.key or None


def _extra_bytes(fields: MessageFields) -> int:
    """Sum an upper bound of a message's fields.

    They stand in a block's header or in its columns.
    """
    key, ordering_key, properties, event_time, _, deliver_at = fields
    total = 0 if event_time is None else _FIELD_BYTES
    if deliver_at is not None:
        total += _FIELD_BYTES
    if key is not None:
        total += _FIELD_BYTES + len(key.encode())
    if ordering_key is not None:
        total += _FIELD_BYTES + len(ordering_key.encode())
    if properties:
        total += _FIELD_BYTES
        for name, value in properties.items():
            total += _FIELD_BYTES + len(name.encode()) + len(value.encode())
    return total
