"""The journal's objects are versioned, bounded, and have a checksum (ADR 0124).

    magic 4 | version 1 | kind 1 | msgpack body | xxh3_64 8

An object is written once, create-only; its nonce tells its writer from others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import msgpack

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.format.checksum import Buffer, checksum

MAGIC = b"PRJ1"
VERSION = 1
MAX_OBJECT_BYTES = 64 * 1024 * 1024
_HEAD = struct.Struct("<4sBB")
_SUM = struct.Struct("<Q")
_BIN_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""Msgpack begins bytes with one of these, and a length of so many bytes."""
DATA, NEXT, SEALED = "data", "next", "sealed"
CLUSTER = "cluster"
"""The object that says whose the prefix is."""
ENTRIES, SNAPSHOTS, FOLDS = "catalog/", "snapshots/", "folds/"
DECISIONS, COPIES, COPIED = "decisions/", "copies/", "copied/"
PIECES = "segments/"
_KINDS = {
    "journal": 1,
    "index": 2,
    "catalog": 3,
    "snapshot": 4,
    "piece": 5,
    "fold": 6,
    "cluster": 7,
    "decision": 8,
    "copy": 9,
    "copied": 10,
}


class Place(NamedTuple):
    """A place in a store's journal is a life and a number."""

    life: int
    number: int


def is_object(key: str) -> bool:
    """Return whether a name in a bucket may be one of ours.

    People and their tools leave others there, which no journal can read. Names end with a number, but for
    those of pieces.
    """
    return key.startswith(PIECES) or key.rpartition("/")[2].isdecimal()


def journal_key(store: str, place: Place) -> str:
    """Return the name of one object of a store's journal."""
    return f"{journal_prefix(store)}{place.life:010d}/{place.number:012d}"


def journal_prefix(store: str) -> str:
    """Return what all names of a store's journal begin with."""
    return f"journal/{store}/"


def place_of(key: str) -> Place:
    """Return the place that a journal object's name tells."""
    _, _, life, number = key.split("/")
    return Place(int(life), int(number))


def index_key(store: str, number: int) -> str:
    """Return the name of a store's index of that number."""
    return f"index/{store}/{number:012d}"


def catalog_key(number: int) -> str:
    """Return the name of the catalog's entry of that number."""
    return f"{ENTRIES}{number:012d}"


def snapshot_key(length: int) -> str:
    """Return the name of the snapshot behind so many entries of the catalog."""
    return f"{SNAPSHOTS}{length:012d}"


def fold_key(length: int) -> str:
    """Return the name of what says that these entries may be deleted."""
    return f"{FOLDS}{length:012d}"


def decision_key(place: Place) -> str:
    """Return the name of a decision of the controller."""
    return f"{DECISIONS}{place.life:010d}/{place.number:012d}"


def copy_key(place: Place) -> str:
    """Return the name of what says that a copy of the controller's catalog is whole."""
    return f"{COPIES}{place.life:010d}/{place.number:012d}"


def copied_key(place: Place, part: int) -> str:
    """Return the name of one part of a copy of the controller's catalog."""
    return f"{COPIED}{place.life:010d}/{place.number:012d}/{part:06d}"


def place_of_decision(key: str) -> Place:
    """Return the place that the name of a decision, or of a copy, tells."""
    _, epoch, number, *_ = key.split("/")
    return Place(int(epoch), int(number))


def pieces_prefix(partition: str) -> str:
    """Return what the names of all pieces of a partition's files begin with."""
    return f"{PIECES}{quote(partition, safe='')}/"


def piece_key(partition: str, file: str, start: int, end: int) -> str:
    """Return the name of the object with these bytes of a file."""
    return f"{pieces_of(partition, file)}{start:014d}-{end:014d}"


def pieces_of(partition: str, file: str) -> str:
    """Return what the names of all pieces of one file begin with."""
    return f"{pieces_prefix(partition)}{quote(file, safe='')}/"


def ledger_of(file: str) -> int | None:
    """Return the ledger in a segment's name, None for any other file."""
    ledger, dash, _ = file.partition("-")
    return int(ledger) if dash and ledger.isdigit() else None


@dataclass(frozen=True)
class Append:
    """Bytes at an offset of a partition's file, with their meaning to readers."""

    partition: str
    file: str
    offset: int
    data: bytes = b""
    mark: tuple[Any, ...] = ()
    """("adopt", state), ("drop", term), ("gone", files), ("leave", term) or
    ("forget",)."""

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True)
class JournalObject:
    """One object of a life: appends in order, or the life's end."""

    nonce: bytes
    kind: str
    life: int
    appends: tuple[Append, ...] = ()


@dataclass(frozen=True)
class IndexObject:
    """Where reading begins, and the files of all partitions as they are at that place."""

    nonce: bytes
    start: Place
    states: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CatalogEntry:
    """One decision names an owner, ends a store, or is the controller's."""

    nonce: bytes
    kind: str
    partition: str = ""
    store: str = ""
    term: int = 0
    decision: bytes = b""


class RowChange(NamedTuple):
    """A row of the controller's catalog from now on; without `values` it is gone."""

    table: str
    row_id: int
    values: dict[str, Any] | None


@dataclass(frozen=True)
class Decision:
    """Rows that the controller has decided, or `next`, the epoch that follows."""

    nonce: bytes
    next: int
    rows: tuple[RowChange, ...] = ()


@dataclass(frozen=True)
class CatalogSnapshot:
    """All decisions of the catalog's first `length` entries, always the same bytes."""

    length: int
    owners: tuple[CatalogEntry, ...]
    sealed: tuple[str, ...]


def _pack(kind: str, body: Any) -> bytes:
    head = _HEAD.pack(MAGIC, VERSION, _KINDS[kind]) + msgpack.packb(body, use_bin_type=True)
    if len(head) > MAX_OBJECT_BYTES:
        raise ValueError(f"an object of {len(head)} bytes is larger than {MAX_OBJECT_BYTES}")
    packed: bytes = head + _SUM.pack(checksum(head))
    return packed


def _unpack(kind: str, key: str, stored: Buffer) -> Any:
    body = _body(kind, key, stored)
    return msgpack.unpackb(body, raw=False, strict_map_key=False, use_list=False)


def _body(kind: str, key: str, stored: Buffer) -> memoryview:
    if len(stored) < _HEAD.size + _SUM.size or len(stored) > MAX_OBJECT_BYTES + _SUM.size:
        raise JournalDamaged(f"{key} has {len(stored)} bytes")
    body = memoryview(stored)[: -_SUM.size]
    magic, version, found = _HEAD.unpack_from(body)
    if magic != MAGIC or found != _KINDS[kind]:
        raise JournalDamaged(f"{key} is not an object of kind {kind}")
    if _SUM.unpack(stored[-_SUM.size :])[0] != checksum(body):
        raise JournalDamaged(f"the checksum of {key} does not match its bytes")
    if version != VERSION:
        raise JournalDamaged(f"{key} was written by a later version, {version}: start that version here")
    return body[_HEAD.size :]


def pack_journal(item: JournalObject) -> bytes:
    """Return the bytes of an object of a journal."""
    appends = [(a.partition, a.file, a.offset, a.data, a.mark) for a in item.appends]
    return _pack("journal", (item.nonce, item.kind, item.life, appends))


def unpack_journal(key: str, stored: Buffer) -> JournalObject:
    """Read an object of a journal, or raise `JournalDamaged`."""
    try:
        nonce, kind, life, appends = _unpack("journal", key, stored)
        return JournalObject(nonce, kind, life, tuple(Append(*a) for a in appends))
    except (ValueError, TypeError) as error:
        raise JournalDamaged(f"{key} cannot be read: {error}") from error


def pack_index(item: IndexObject) -> bytes:
    """Return the bytes of an index."""
    return _pack("index", (item.nonce, tuple(item.start), item.states))


def unpack_index(key: str, stored: Buffer) -> IndexObject:
    """Read an index, or raise `JournalDamaged`."""
    try:
        nonce, start, states = _unpack("index", key, stored)
        return IndexObject(nonce, Place(*start), states)
    except (ValueError, TypeError) as error:
        raise JournalDamaged(f"{key} cannot be read: {error}") from error


def pack_entry(item: CatalogEntry) -> bytes:
    """Return the bytes of an entry of the catalog."""
    return _pack("catalog", (item.nonce, item.kind, item.partition, item.store, item.term, item.decision))


def unpack_entry(key: str, stored: Buffer) -> CatalogEntry:
    """Read an entry of the catalog, or raise `JournalDamaged`."""
    try:
        return CatalogEntry(*_unpack("catalog", key, stored))
    except (ValueError, TypeError) as error:
        raise JournalDamaged(f"{key} cannot be read: {error}") from error


def pack_snapshot(item: CatalogSnapshot) -> bytes:
    """Return the bytes of a snapshot of the catalog."""
    owners = [(e.nonce, e.partition, e.store, e.term) for e in item.owners]
    return _pack("snapshot", (item.length, owners, item.sealed))


def unpack_snapshot(key: str, stored: Buffer) -> CatalogSnapshot:
    """Read a snapshot of the catalog, or raise `JournalDamaged`."""
    try:
        length, owners, sealed = _unpack("snapshot", key, stored)
        return CatalogSnapshot(
            length, tuple(CatalogEntry(nonce, "owner", *rest) for nonce, *rest in owners), sealed
        )
    except (ValueError, TypeError) as error:
        raise JournalDamaged(f"{key} cannot be read: {error}") from error


def pack_fold(length: int) -> bytes:
    """Return the object that stays for entries which may be deleted."""
    return _pack("fold", length)


def pack_piece(data: bytes) -> bytes:
    """Return the object of a piece of a log, always the same one."""
    return _pack("piece", data)


def unpack_piece(key: str, stored: Buffer) -> memoryview:
    """Return the bytes of a piece without copying them, or raise `JournalDamaged`."""
    body = _body("piece", key, stored)
    size = _BIN_LENGTHS.get(body[0] if body else -1)
    begin = 1 + size if size is not None else 0
    if not begin or int.from_bytes(body[1:begin], "big") != len(body) - begin:
        raise JournalDamaged(f"{key} cannot be read: it is not the bytes of a file")
    return body[begin:]


def pack_cluster(cluster_id: str) -> bytes:
    """Return the object that says whose a prefix is, always the same one."""
    return _pack("cluster", cluster_id)


def unpack_cluster(stored: Buffer) -> str:
    """Read whose a prefix is, or raise `JournalDamaged`."""
    try:
        return str(_unpack("cluster", CLUSTER, stored))
    except (ValueError, TypeError) as error:
        raise JournalDamaged(f"{CLUSTER} cannot be read: {error}") from error


def _pack_rows(rows: tuple[RowChange, ...]) -> Any:
    """Name each table and its columns once."""
    columns = {row.table: tuple(row.values) for row in rows if row.values is not None}
    packed = [(r.table, r.row_id, None if r.values is None else tuple(r.values.values())) for r in rows]
    return columns, packed


def _unpack_rows(columns: Any, packed: Any) -> tuple[RowChange, ...]:
    return tuple(
        RowChange(table, row_id, None if values is None else dict(zip(columns[table], values, strict=True)))
        for table, row_id, values in packed
    )


def pack_decision(item: Decision) -> bytes:
    """Return the bytes of a decision of the controller."""
    return _pack("decision", (item.nonce, item.next, *_pack_rows(item.rows)))


def unpack_decision(key: str, stored: Buffer) -> Decision:
    """Read a decision of the controller, or raise `JournalDamaged`."""
    try:
        nonce, following, columns, rows = _unpack("decision", key, stored)
        return Decision(nonce, following, _unpack_rows(columns, rows))
    except (ValueError, TypeError, KeyError) as error:
        raise JournalDamaged(f"{key} cannot be read: {error}") from error


def pack_copied(rows: tuple[RowChange, ...]) -> bytes:
    """Return the bytes of a part of a copy of the controller's catalog."""
    return _pack("copied", _pack_rows(rows))


def unpack_copied(key: str, stored: Buffer) -> tuple[RowChange, ...]:
    """Read a part of a copy of the controller's catalog, or raise `JournalDamaged`."""
    try:
        return _unpack_rows(*_unpack("copied", key, stored))
    except (ValueError, TypeError, KeyError) as error:
        raise JournalDamaged(f"{key} cannot be read: {error}") from error


def pack_copy(place: Place, parts: int) -> bytes:
    """Return the object that says how many parts a copy has."""
    return _pack("copy", (tuple(place), parts))


def unpack_copy(key: str, stored: Buffer) -> int:
    """Return the number of parts of a copy, or raise `JournalDamaged`."""
    try:
        return int(_unpack("copy", key, stored)[1])
    except (ValueError, TypeError, IndexError) as error:
        raise JournalDamaged(f"{key} cannot be read: {error}") from error
