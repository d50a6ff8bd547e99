"""Messages to blocks and back (ADR 0002)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_ray.errors import CryptoError, InvalidMessage, MessageTooBig, UnsupportedFormatVersion
from pulsar_ray.format.arrow_memory import int64_array
from pulsar_ray.format.arrow_payload import (
    BLOCK_SCHEMA,
    decode_rows,
    encode_rows,
    encode_table,
    to_list,
)
from pulsar_ray.format.block import (
    ARROW,
    CHUNK,
    COLUMNAR,
    ENCRYPTED,
    KEY_COLUMN,
    KNOWN_COLUMNS,
    NULL_VALUE,
    ORDERING_KEY_COLUMN,
    RAW,
    ROW_IS_ENTRY,
    SEQUENCE_ID_COLUMN,
    BlockHeader,
    encode_block,
    parse_block_header,
    verify_bytes,
)
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.columnar import row_bytes, rows_of_value_column
from pulsar_ray.format.compression import LZ4, MAX_UNCOMPRESSED_LENGTH, UnknownCodec, compress, decompress
from pulsar_ray.format.metadata import BlockMetadata, EncryptionInfo

__all__ = ["DecodedBlock", "decode_block", "encode_batch", "encode_rows", "encode_single", "encode_table"]

_VALUE, _KEY, _ORDERING_KEY, _PROPERTIES, _EVENT_TIME, _SEQUENCE_ID = range(6)
_PLACES = {name: place for place, name in enumerate(BLOCK_SCHEMA.names)}


def encode_single(
    value: Buffer | None,
    *,
    incarnation: int,
    entry_seq: int,
    sequence_id: int,
    publish_time_ms: int,
    codec: int = 0,
    metadata: BlockMetadata | None = None,
) -> list[Buffer]:
    """Encode one message; None is a tombstone.

    A codec that does not make the message smaller is not used.

    Raises MessageTooBig above 128 MiB uncompressed, ValueError for wrong metadata. The limits on what is
    stored are `check_block_size`'s.
    """
    flags = 0
    if value is None:
        value = b""
        flags = NULL_VALUE
    uncompressed_length = len(value)
    if codec:
        codec, value = _compressed(codec, value)
    return encode_block(
        value,
        incarnation=incarnation,
        entry_seq=entry_seq,
        first_sequence_id=sequence_id,
        last_sequence_id=sequence_id,
        publish_time_ms=publish_time_ms,
        codec=codec,
        uncompressed_length=uncompressed_length,
        flags=flags,
        metadata=metadata,
    )


def encode_batch(
    payload: Buffer,
    columns: int,
    *,
    message_count: int,
    incarnation: int,
    entry_seq: int,
    first_sequence_id: int,
    last_sequence_id: int,
    publish_time_ms: int,
    row_is_entry: bool = False,
    codec: int = 0,
    metadata: BlockMetadata | None = None,
    fields: bytes = b"",
) -> list[Buffer]:
    """Make a block of what `encode_rows` or `encode_table` returned; metadata holds for every row.

    `fields` are metadata that are encoded already, as `encode_block` takes them.

    Raises MessageTooBig above 128 MiB uncompressed, ValueError for a field out of range, and if sequence
    ids are not consecutive although the payload has no column for them.
    """
    consecutive = last_sequence_id - first_sequence_id == message_count - 1
    if not consecutive and not columns & SEQUENCE_ID_COLUMN:
        raise ValueError(
            f"{message_count} messages cannot have the sequence ids {first_sequence_id}..{last_sequence_id} "
            "without a column for them"
        )
    uncompressed_length = len(payload)
    if codec:
        codec, payload = _compressed(codec, payload)
    return encode_block(
        payload,
        incarnation=incarnation,
        entry_seq=entry_seq,
        first_sequence_id=first_sequence_id,
        last_sequence_id=last_sequence_id,
        publish_time_ms=publish_time_ms,
        message_count=message_count,
        payload_format=ARROW,
        columns=columns,
        codec=codec,
        uncompressed_length=uncompressed_length,
        flags=ROW_IS_ENTRY if row_is_entry else 0,
        metadata=metadata,
        fields=fields,
    )


def _compressed(codec: int, payload: Buffer) -> tuple[int, Buffer]:
    if len(payload) > MAX_UNCOMPRESSED_LENGTH:
        raise MessageTooBig(f"{len(payload)} bytes uncompressed; consumers take {MAX_UNCOMPRESSED_LENGTH}")
    packed = compress(codec, payload)
    return (codec, packed) if len(packed) < len(payload) else (0, payload)


class DecodedBlock:
    """A verified block's messages, column by column; lists are made once and when asked for.

    A column the block does not have is None, unless the block's metadata gives all rows one value. Chunks
    give their part as stored: `header.codec` and `header.uncompressed_length` are those of the whole.
    """

    __slots__ = (
        "__weakref__",
        "_batch",
        "_lists",
        "_rows",
        "_value",
        "header",
        "is_columnar",
        "message_count",
        "metadata",
        "record_batches",
        "undecrypted",
    )

    def __init__(
        self, header: BlockHeader, metadata: BlockMetadata, batch: pa.RecordBatch | None, value: bytes | None
    ) -> None:
        self.header = header
        self.metadata = metadata
        self.message_count = header.message_count
        self.is_columnar = bool(header.columns & COLUMNAR)
        """Whether the values are rows of columns."""
        self._batch = batch
        self._value = value
        self._lists: dict[int, list[Any] | None] = {}
        self._rows: pa.StructArray | None = None
        self.undecrypted: BlockHeader | None = None
        """The header of a block that stands here encrypted, all of it as one message."""
        self.record_batches: dict[Any, pa.RecordBatch] = {}
        """Kept for whoever reads this block next: consumers of several subscriptions share it."""

    @property
    def is_many_as_one(self) -> bool:
        """Whether it stands for several messages, which could not be decrypted."""
        return self.undecrypted is not None and self.undecrypted.message_count > 1

    def rows(self) -> pa.StructArray:
        """Return the values of a columnar block as rows, null for a tombstone. Raises InvalidMessage."""
        if self._rows is None:
            try:
                self._rows = rows_of_value_column(self._stored(_VALUE))
            except ValueError as error:
                raise InvalidMessage(
                    f"the columns of block {self.header.entry_seq} of incarnation "
                    f"{self.header.incarnation:#x} cannot be read: {error}"
                ) from None
        return self._rows

    def values(self) -> list[bytes | None]:
        """Return each message's bytes, None for a tombstone.

        A row of columns has those that it would have alone.
        """
        return cast("list[bytes | None]", self._list(_VALUE, None))

    def keys(self) -> list[str | None] | None:
        """Return each message's key."""
        return self._list(_KEY, self.metadata.key)

    def ordering_keys(self) -> list[str | None] | None:
        """Return each message's ordering key."""
        return self._list(_ORDERING_KEY, self.metadata.ordering_key)

    def properties(self) -> list[dict[str, str]] | None:
        """Return each message's properties, {} where it has none."""
        return self._list(_PROPERTIES, self.metadata.properties)

    def event_times(self) -> list[int | None] | None:
        """Return each message's event time in ms."""
        return self._list(_EVENT_TIME, self.metadata.event_time)

    def sequence_ids(self) -> list[int]:
        """Return each message's sequence id."""
        return cast("list[int]", self._list(_SEQUENCE_ID, None))

    @property
    def has_sequence_ids(self) -> bool:
        """Whether there is a column for them; without one they are consecutive."""
        return self._has(_SEQUENCE_ID)

    def stored_rows(self) -> pa.RecordBatch:
        """Return the columns that the block of several messages has.

        Rows of columns are in the place of bytes; `encode_table` takes both.
        """
        if self._batch is None:
            raise ValueError("a message alone has no columns")
        if self.is_columnar:
            schema = self._batch.schema.set(_VALUE, pa.field("value", self.rows().type))
            return pa.RecordBatch.from_arrays([self.rows(), *self._batch.columns[1:]], schema=schema)
        return self._batch

    def record_batch(self, schema: pa.Schema = BLOCK_SCHEMA) -> pa.RecordBatch:
        """Return the messages with these columns of BLOCK_SCHEMA, also for a single message."""
        columns = self.columns(tuple(schema.names))
        arrays = [
            pa.nulls(self.message_count, field.type) if column is None else column
            for column, field in zip(columns, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def columns(self, names: tuple[str, ...]) -> list[pa.Array | None]:
        """Return columns of BLOCK_SCHEMA, None for one that no message has anything in."""
        stored = self.header.columns
        return [
            self._of_batch(column) if stored >> column & 1 else self._common(column, name)
            for name, column in [(name, _PLACES[name]) for name in names]
        ]

    def column(self, name: str) -> pa.Array | None:
        """Return a column of BLOCK_SCHEMA, None if no message has anything in it."""
        return self.columns((name,))[0]

    def _has(self, column: int) -> bool:
        # A message alone has no columns.
        return bool(self.header.columns >> column & 1)

    def _of_batch(self, column: int) -> pa.Array:
        if column == _VALUE and self.is_columnar:
            return pa.array(self.values(), pa.binary())
        return self._stored(column)

    def _stored(self, column: int) -> pa.Array:
        assert self._batch is not None
        return self._batch.column((self.header.columns & ((1 << column) - 1)).bit_count())

    def _list(self, column: int, of_all: Any) -> list[Any] | None:
        if column not in self._lists:
            self._lists[column] = self._make_list(column, of_all)
        return self._lists[column]

    def _make_list(self, column: int, of_all: Any) -> list[Any] | None:
        if column == _VALUE and self.is_columnar:
            return row_bytes(self.rows())
        if self._has(column):
            rows = to_list(self._stored(column))
            return [dict(row) if row else {} for row in rows] if column == _PROPERTIES else rows
        if column == _VALUE:
            return [self._value]
        if column == _SEQUENCE_ID:
            return list(range(self.header.first_sequence_id, self.header.last_sequence_id + 1))
        return None if of_all is None else [of_all] * self.message_count

    def _common(self, column: int, name: str) -> pa.Array | None:
        """A column that is not stored."""
        if column == _VALUE:
            return pa.array([self._value], pa.binary())
        if column == _SEQUENCE_ID:
            return int64_array(np.arange(self.header.first_sequence_id, self.header.last_sequence_id + 1))
        of_all = getattr(self.metadata, name)
        if of_all is None:
            return None
        row = list(of_all.items()) if isinstance(of_all, dict) else of_all
        return pa.array([row] * self.message_count, BLOCK_SCHEMA.field(column).type)


Decrypt = Callable[[EncryptionInfo, Buffer], bytes]
"""decrypt(how it was encrypted, payload) returns the payload; raises CryptoError."""


def without_key(info: EncryptionInfo, _payload: Buffer) -> bytes:
    """Raise CryptoError: nothing is decrypted here."""
    raise CryptoError(
        f"the message is encrypted for the key {info.key_names()}: read it with a consumer that has a "
        "crypto_key_reader"
    )


def decode_block(
    buf: Buffer, offset: int = 0, path: str = "block", decrypt: Decrypt = without_key
) -> DecodedBlock:
    """Verify and decode the block at `offset`; `path` says in errors where it comes from.

    The buffer must not change while the result is in use. Raises CorruptData (a ChecksumError) for damaged
    bytes, InvalidMessage for an intact block its producer made wrongly, UnsupportedFormatVersion for one of
    a newer build, CryptoError for one that `decrypt` cannot decrypt.
    """
    header = parse_block_header(buf, offset, path)
    verify_bytes(buf, offset, header.total_length, header.checksum, path)
    start = offset + header.header_length
    payload = buf[start : start + header.payload_length]
    try:
        metadata = header.metadata()
        if header.flags & ENCRYPTED:
            payload = decrypted(metadata, payload, decrypt)
        return _decoded(header, metadata, payload)
    except UnknownCodec as error:
        raise UnsupportedFormatVersion(f"{path} offset {offset}: {error}") from None
    except ValueError as error:
        raise InvalidMessage(
            f"{path} offset {offset}: block {header.entry_seq} of incarnation {header.incarnation:#x} "
            f"cannot be decoded: {error}"
        ) from None


def decrypted(metadata: BlockMetadata, payload: Buffer, decrypt: Decrypt) -> bytes:
    """Decrypt the payload of a block. Raises CryptoError, ValueError without a word on how."""
    if metadata.encryption is None:
        raise ValueError("it is encrypted, and does not say how")
    return decrypt(metadata.encryption, payload)


def _decoded(header: BlockHeader, metadata: BlockMetadata, payload: Buffer) -> DecodedBlock:
    if header.payload_format > ARROW or header.columns > KNOWN_COLUMNS:
        raise UnsupportedFormatVersion(
            f"block with payload format {header.payload_format} and columns {header.columns:#x}; "
            f"this build reads formats up to {ARROW} and columns {KNOWN_COLUMNS:#x}"
        )
    is_plain = not header.codec and len(payload) == header.uncompressed_length
    if not is_plain and not header.flags & CHUNK:
        payload = decompress(header.codec, payload, header.uncompressed_length)
    if header.payload_format == ARROW:
        if header.flags & (NULL_VALUE | CHUNK):
            raise ValueError("flags of a single message on a batch")
        batch = decode_rows(payload, header.columns, header.message_count)
    else:
        if header.payload_format != RAW or header.columns or header.message_count != 1:
            raise ValueError("several messages in the format of a single one")
        if header.flags & ROW_IS_ENTRY or (header.flags & NULL_VALUE and header.payload_length):
            raise ValueError("flags contradict the payload")
        batch = None
    ids = header.last_sequence_id - header.first_sequence_id + 1
    if ids != header.message_count and not header.columns & SEQUENCE_ID_COLUMN:
        raise ValueError(f"{header.message_count} messages with {ids} sequence ids")
    value = None if batch is not None or header.flags & NULL_VALUE else bytes(payload)
    return DecodedBlock(header, metadata, batch, value)


_TIME_BYTES = 8
"""Of a delivery time."""


class RestOfBlock(NamedTuple):
    """The rest of a block, and how much of its front was cut off."""

    buffers: list[Buffer]
    dropped_messages: int
    dropped_entries: int


def rest_of_block(buffers: Sequence[Buffer], stored_id: int) -> RestOfBlock:
    """Encode a batch again without the messages up to a sequence id.

    One message at least is left. Its sequence ids rise. The entries that are left keep their numbers.
    """
    decoded = decode_block(b"".join(buffers))
    header = decoded.header
    ids = decoded.sequence_ids()
    dropped = min(bisect_right(ids, stored_id), len(ids) - 1)
    if not dropped:
        return RestOfBlock(list(buffers), 0, 0)
    payload, columns = encode_table(decoded.stored_rows().slice(dropped))
    keys, ordering_keys = decoded.keys(), decoded.ordering_keys()
    metadata = decoded.metadata
    if not header.row_is_entry:
        # A batch has those of its first message in its header.
        metadata = metadata._replace(
            key=keys[dropped] if keys else None,
            ordering_key=ordering_keys[dropped] if ordering_keys else None,
        )
    if metadata.delivery_times is not None:
        metadata = metadata._replace(delivery_times=metadata.delivery_times[dropped * _TIME_BYTES :])
    entries = dropped if header.row_is_entry else 0
    rest = encode_batch(
        payload,
        columns,
        message_count=len(ids) - dropped,
        incarnation=header.incarnation,
        entry_seq=header.entry_seq + entries,
        first_sequence_id=ids[dropped],
        last_sequence_id=ids[-1],
        publish_time_ms=header.publish_time_ms,
        row_is_entry=header.row_is_entry,
        codec=header.codec,
        metadata=metadata,
    )
    return RestOfBlock(rest, dropped, entries)


def without_rows(decoded: DecodedBlock, kept: npt.NDArray[np.bool_]) -> list[Buffer]:
    """Encode a batch again with nothing in the rows that are not `kept`.

    It names them as removed.

    The others keep their numbers, ids and everything else.
    """
    header, metadata = decoded.header, decoded.metadata
    stored = decoded.stored_rows()
    places = int64_array(np.arange(len(kept)), kept)
    columns = [
        column if name == "sequence_id" else column.take(places)
        for name, column in zip(stored.schema.names, stored.columns, strict=True)
    ]
    payload, bits = encode_table(pa.RecordBatch.from_arrays(columns, schema=stored.schema))
    first = int(np.argmax(kept))
    # A batch has those of its first message in its header, which would be all messages' without a column.
    if header.columns & KEY_COLUMN:
        key = None if header.row_is_entry else stored.column("key")[first].as_py()
        metadata = metadata._replace(key=key)
    if header.columns & ORDERING_KEY_COLUMN:
        ordering_key = None if header.row_is_entry else stored.column("ordering_key")[first].as_py()
        metadata = metadata._replace(ordering_key=ordering_key)
    removed = np.packbits(~kept, bitorder="little").tobytes()
    is_sparse = 2 * int(np.count_nonzero(kept)) < len(kept)
    return encode_batch(
        payload,
        bits,
        message_count=header.message_count,
        incarnation=header.incarnation,
        entry_seq=header.entry_seq,
        first_sequence_id=header.first_sequence_id,
        last_sequence_id=header.last_sequence_id,
        publish_time_ms=header.publish_time_ms,
        row_is_entry=header.row_is_entry,
        codec=header.codec or (LZ4 if is_sparse else 0),
        metadata=metadata._replace(removed_rows=removed),
    )
