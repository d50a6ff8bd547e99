"""Message ids in Pulsar's serialised form, and the positions of entries, which they contain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

from pulsar_ray.inheritable import mypyc_attr


class Position(NamedTuple):
    """Ledger and entry id; positions sort in the order of the log."""

    ledger_id: int
    entry_id: int

    def next(self) -> Position:
        """The following entry of the same ledger, whether or not it exists."""
        return Position(self.ledger_id, self.entry_id + 1)


position_of: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)
"""As `Position(*pair)`, without the function that a NamedTuple puts before it."""


def entry_at(first_entry_id: int, row: int) -> int:
    """The entry id of a row that is an entry.

    It is -1 for all rows of a block that was never stored.
    """
    return first_entry_id + row if first_entry_id >= 0 else -1


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)
DUPLICATE_LEDGER = -2
DUPLICATE = Position(DUPLICATE_LEDGER, DUPLICATE_LEDGER)
"""In receipts: the messages had been stored before, and were left out."""


# A generation tells which deliveries and acknowledgments are from before a subscription was sought or
# rewound. It only rises while a dispatcher runs: seeks, which are durable, count in its upper half, and what
# a dispatcher makes come again in order, which is forgotten with it, in its lower half.
_SEEK_SHIFT = 32


def after_seeks(seeks: int) -> int:
    """The first generation after that many seeks."""
    return seeks << _SEEK_SHIFT


def has_rewound(generation: int) -> bool:
    """Whether messages came again in order since the last seek."""
    return generation & ((1 << _SEEK_SHIFT) - 1) != 0


def seeks_of(generation: int) -> int:
    """How many seeks a generation comes after."""
    return generation >> _SEEK_SHIFT


_MAX_INT64 = 2**63 - 1
_MAX_INT32 = 2**31 - 1
_MASK_64 = 2**64 - 1

# Fields of Pulsar's protobuf MessageIdData.
_LEDGER_ID, _ENTRY_ID, _PARTITION, _BATCH_INDEX, _ACK_SET, _BATCH_SIZE, _FIRST_CHUNK = range(1, 8)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


Number: TypeAlias = Any
"""Stands for an int; others are refused where the id is used."""
Serialized: TypeAlias = Any
"""Stands for bytes; others are refused with a ValueError."""


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageId:
    """Where a message is stored: ledger, entry, partition and index in its batch.

    The partition is -1 in a topic without partitions, the index -1 outside a batch.

    Immutable. Ids order by ledger, entry, batch index, partition; equality compares the same four. The
    constructor's values are checked when an id is used or serialised, not when it is built.
    """

    __slots__ = (
        "_batch_index",
        "_batch_size",
        "_entry_id",
        "_first_chunk",
        "_ledger_id",
        "_partition",
        "topic_name",
    )

    earliest: ClassVar[MessageId]
    latest: ClassVar[MessageId]

    def __init__(
        self,
        partition: Number = -1,
        ledger_id: Number = -1,
        entry_id: Number = -1,
        batch_index: Number = -1,
        batch_size: Number = 0,  # by place where an id is made for each message: names cost half more
        topic_name: str = "",
        first_chunk: MessageId | None = None,
    ) -> None:
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._partition = partition
        self._batch_index = batch_index
        self._batch_size = batch_size
        self._first_chunk = first_chunk
        self.topic_name = topic_name

    def ledger_id(self) -> int:
        return self._ledger_id  # type: ignore[no-any-return]

    def entry_id(self) -> int:
        return self._entry_id  # type: ignore[no-any-return]

    def partition(self) -> int:
        return self._partition  # type: ignore[no-any-return]

    def batch_index(self) -> int:
        return self._batch_index  # type: ignore[no-any-return]

    def batch_size(self) -> int:
        """Messages in the batch; 0 outside a batch and where the size is unknown."""
        return self._batch_size  # type: ignore[no-any-return]

    def first_chunk(self) -> MessageId | None:
        """Id of a chunked message's first chunk (the id itself is the last one's)."""
        return self._first_chunk

    def check(self) -> None:
        """Raise ValueError for values that no message id has. Not part of the official client."""
        ledger_id, entry_id = self._ledger_id, self._entry_id
        numbers = (*self._key(), self._batch_size)
        if not all(isinstance(number, int) for number in numbers):
            raise ValueError(f"{self} is no message id: it must be made of ints")
        is_place = 0 <= ledger_id <= _MAX_INT64 and -1 <= entry_id <= _MAX_INT64
        if not is_place and not ledger_id == entry_id == -1:
            raise ValueError(f"{self} is no message id: ledger and entry must be in 0..2^63-1")
        for value, absent in ((self._partition, -1), (self._batch_index, -1), (self._batch_size, 0)):
            if not absent <= value <= _MAX_INT32:
                raise ValueError(f"{self} is no message id: {value} is not in {absent}..2^31-1")

    def serialize(self) -> bytes:
        """Pulsar's MessageIdData, without the topic name. Raises ValueError for values out of range."""
        self.check()
        out = bytearray((_LEDGER_ID << 3 | _VARINT,))
        _put_varint(out, self._ledger_id)
        out.append(_ENTRY_ID << 3 | _VARINT)
        _put_varint(out, self._entry_id)
        optional = (
            (_PARTITION, self._partition, -1),
            (_BATCH_INDEX, self._batch_index, -1),
            (_BATCH_SIZE, self._batch_size, 0),
        )
        for number, value, absent in optional:
            if value != absent:
                out.append(number << 3 | _VARINT)
                _put_varint(out, value)
        if self._first_chunk is not None:
            first = self._first_chunk.serialize()
            out.append(_FIRST_CHUNK << 3 | _BYTES)
            _put_varint(out, len(first))
            out += first
        return bytes(out)

    @staticmethod
    def deserialize(message_id_bytes: Serialized, topic: str | None = None) -> MessageId:
        """The id `serialize` made bytes of, of the given topic. Raises ValueError for anything else."""
        if not isinstance(message_id_bytes, (bytes, bytearray, memoryview)):
            raise ValueError(f"a serialised MessageId is bytes, not {type(message_id_bytes).__name__}")
        return _decode(bytes(message_id_bytes), topic or "", may_have_first_chunk=True)

    @classmethod
    def wrap(cls, msg_id: MessageId) -> MessageId:
        """`msg_id` itself: there is only one class of ids here."""
        return msg_id

    def _key(self) -> tuple[Number, Number, Number, Number]:
        return self._ledger_id, self._entry_id, self._batch_index, self._partition

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, MessageId) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if isinstance(other, MessageId) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self._key() <= other._key() if isinstance(other, MessageId) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self._key() > other._key() if isinstance(other, MessageId) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self._key() >= other._key() if isinstance(other, MessageId) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        text = f"({self._ledger_id},{self._entry_id},{self._partition},{self._batch_index})"
        return text if self._first_chunk is None else f"{self._first_chunk!r};{text}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (*self._key(), self._batch_size, self.topic_name, self._first_chunk)


def _rebuild(
    ledger_id: int,
    entry_id: int,
    batch_index: int,
    partition: int,
    batch_size: int,
    topic_name: str,
    first_chunk: MessageId | None,
) -> MessageId:
    return MessageId(
        partition,
        ledger_id,
        entry_id,
        batch_index,
        batch_size=batch_size,
        topic_name=topic_name,
        first_chunk=first_chunk,
    )


MessageId.earliest = MessageId(-1, -1, -1, -1)
MessageId.latest = MessageId(-1, _MAX_INT64, _MAX_INT64, -1)


def _put_varint(out: bytearray, value: int) -> None:
    value &= _MASK_64  # protobuf writes negative integers as 64-bit two's complement
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _get_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a signed 64-bit integer; returns the value and the offset behind it.

    Raises IndexError at the end of data.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _MASK_64
            return value - 2**64 if value > _MAX_INT64 else value, at
    raise ValueError("a number has more than ten bytes")


def _decode(data: bytes, topic: str, *, may_have_first_chunk: bool) -> MessageId:
    try:
        numbers, chunk = _fields(data)
        ledger_id, entry_id = numbers[_LEDGER_ID], numbers[_ENTRY_ID]
    except (IndexError, KeyError, ValueError) as error:
        raise ValueError(f"{data[:64].hex()} is not a serialised MessageId ({error})") from None
    partition = numbers.get(_PARTITION, -1)
    batch_index = numbers.get(_BATCH_INDEX, -1)
    batch_size = numbers.get(_BATCH_SIZE, 0)
    in_range = (
        min(ledger_id, entry_id, partition, batch_index) >= -1
        and batch_size >= 0
        and max(partition, batch_index, batch_size) <= _MAX_INT32
    )
    if not in_range or (chunk is not None and not may_have_first_chunk):
        raise ValueError(f"{data[:64].hex()} is not a serialised MessageId (a value is out of range)")
    first = None if chunk is None else _decode(chunk, topic, may_have_first_chunk=False)
    return MessageId(
        partition,
        ledger_id,
        entry_id,
        batch_index,
        batch_size=batch_size,
        topic_name=topic,
        first_chunk=first,
    )


def _fields(data: bytes) -> tuple[dict[int, int], bytes | None]:
    """Decode the numbers by field, and the first chunk's bytes.

    Of repeated fields the last counts; unknown ones are skipped.
    """
    numbers: dict[int, int] = {}
    chunk: bytes | None = None
    at = 0
    while at < len(data):
        tag, at = _get_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if number <= 0:
            raise ValueError(f"field number {number}")
        if wire_type == _VARINT:
            numbers[number], at = _get_varint(data, at)
            continue
        if wire_type == _BYTES:
            length, at = _get_varint(data, at)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type}")
        if length < 0 or at + length > len(data):
            raise ValueError("it is cut off")
        if number == _FIRST_CHUNK and wire_type == _BYTES:
            chunk = data[at : at + length]
        elif number < _FIRST_CHUNK and number != _ACK_SET:
            raise ValueError(f"field {number} is no number")
        at += length
    return numbers, chunk
