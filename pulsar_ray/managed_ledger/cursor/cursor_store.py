"""A cursor's directory on disk: a log of changes, flushed in two phases.

A flush is begun on the loop that owns the cursor, run on a thread that may block, and finished on the loop
again. One flush at a time; what changes meanwhile belongs to the next.

One record is applied as a whole or not at all. A record is a map; keys left out mean nothing:

    m   [ledger, entry]                     mark-delete (always there)
    g   generation (always there)
    r   true: forget holes, rows and counts first (the cursor was reset)
    d   [ledger, [gap, length, ...], ...]   holes above mark-delete; a gap is the way from the hole before;
                                            bytes instead of a length are holes of one entry for each bit set
                                            in them, the lowest of the first byte first
    b   [ledger, entry, [start, end, ...], ...] acknowledged rows of batches
    c   [ledger, first, last, count, ...]   redelivery counts
    f   [ledger, entry, [start, end, failures, ...], ...] failures of a batch's messages
    k   [id, name, type, ...]               consumers that came
    x   [id, ...]                           consumers that went
    q   [number, origin, [ledger, entry, [start, end, ...], ...], ...]  all groups of suspects (ADR 0033)
    s   [name, is durable, properties]      the subscription (snapshots only)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain, pairwise
from operator import add, sub
from pathlib import Path
from typing import Any

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk
from pulsar_ray.ledger.record_log import Record, RecordLog, read_log
from pulsar_ray.managed_ledger.cursor.cursor_directories import UNFINISHED
from pulsar_ray.managed_ledger.cursor.managed_cursor import (
    CursorChanges,
    CursorSubscription,
    KnownConsumer,
    ManagedCursor,
    SuspectRows,
)
from pulsar_ray.model import row_sets
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.position_ranges import MANY_PIECES, PieceColumns, PositionRanges
from pulsar_ray.numpy_on_demand import np

SNAPSHOT = 1
CHANGES = 2


def check_record_types(records: Iterable[tuple[int, Any]], path: str) -> None:
    """Raise UnsupportedFormatVersion if a newer build wrote a record among these."""
    unknown = {kind for kind, _ in records} - {SNAPSHOT, CHANGES}
    if unknown:
        raise UnsupportedFormatVersion(f"{path} has records of type {min(unknown)}, unknown to this build")


def snapshot_payload(cursor: ManagedCursor) -> dict[str, Any]:
    """The whole state of a cursor."""
    subscription = cursor.subscription
    return {
        "s": [subscription.name, subscription.is_durable, subscription.properties],
        **_head(cursor),
        "d": _encode_holes(cursor.deleted),
        "b": _encode_batches(cursor.batch_acks()),
        "c": list(chain.from_iterable(cursor.counts)),
        "f": _encode_batches(cursor.counts.all_row_failures()),
        "k": _encode_consumers(cursor.consumers.values()),
        **({"q": _encode_suspects(cursor.suspects)} if cursor.suspects else {}),
    }


def changes_payload(cursor: ManagedCursor) -> dict[str, Any]:
    """The changes since the last flush, as a record's payload.

    Holes that mark-delete has passed by now are left out.
    """
    changes, mark_delete = cursor.changes, cursor.mark_delete
    payload = _head(cursor)
    if changes.is_reset:
        payload["r"] = True
    if deleted := changes.deleted_behind(mark_delete):
        payload["d"] = _encode_holes(deleted)
    if changes.batches:
        payload["b"] = _encode_batches(
            (position, rows)
            for position, rows in changes.batches.items()
            if not cursor.is_acknowledged(position)
        )
    if changes.counts:
        payload["c"] = list(chain.from_iterable(c for c in changes.counts if (c[0], c[2]) > mark_delete))
    if changes.row_failures:
        payload["f"] = _encode_batches(
            (position, rows)
            for position, rows in changes.row_failures.items()
            if not cursor.is_acknowledged(position)
        )
    if changes.has_suspects:
        payload["q"] = _encode_suspects(cursor.suspects)
    if changes.consumers:
        known = cursor.consumers
        payload["k"] = _encode_consumers(known[i] for i in changes.consumers if i in known)
        payload["x"] = [i for i in changes.consumers if i not in known]
    return payload


def cursor_from_snapshot(payload: dict[str, Any]) -> ManagedCursor:
    """A cursor in the state of a snapshot.

    KeyError, TypeError or ValueError if it is none.
    """
    name, is_durable, properties = payload["s"]
    cursor = ManagedCursor(CursorSubscription(name, is_durable, dict(properties)))
    apply_changes(cursor, payload)
    return cursor


def apply_changes(cursor: ManagedCursor, payload: dict[str, Any]) -> None:
    """Bring a cursor to the state after a record.

    KeyError, TypeError or ValueError if it is none.
    """
    if payload.get("r"):
        cursor.mark_delete = Position(*payload["m"])
        cursor.restore_nothing()
    # Counts and rows first: acknowledgments of the same record take them away again.
    for i in range(0, len(counts := payload.get("c", ())), 4):
        cursor.counts.set(*counts[i : i + 4])
    for ledger_id, entry_id, flat in _triples(payload.get("f", ())):
        cursor.counts.set_row_failures(
            Position(ledger_id, entry_id), tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        )
    for ledger_id, entry_id, flat in _triples(payload.get("b", ())):
        cursor.restore_batch(Position(ledger_id, entry_id), tuple(zip(flat[::2], flat[1::2], strict=True)))
    if (groups := payload.get("q")) is not None:
        cursor.suspects = dict(_decode_suspects(groups))
    for identity, name, consumer_type in _triples(payload.get("k", ())):
        cursor.consumers[identity] = KnownConsumer(identity, name, consumer_type)
    for identity in payload.get("x", ()):
        cursor.consumers.pop(identity, None)
    cursor.restore_deleted(_decode_holes(payload.get("d", ())), Position(*payload["m"]))
    cursor.generation = payload["g"]


def _head(cursor: ManagedCursor) -> dict[str, Any]:
    return {"m": list(cursor.mark_delete), "g": cursor.generation}


def _encode_holes(holes: PositionRanges) -> list[Any]:
    return list(chain.from_iterable((ledger_id, _encode_pieces(c)) for ledger_id, c in holes.columns()))


def _encode_pieces(columns: PieceColumns) -> list[int | bytes]:
    firsts, lasts, bits = columns
    flat: list[int | bytes] = []
    if len(firsts) < MANY_PIECES:
        at = 0
        for first, last in zip(firsts, lasts, strict=True):
            flat += (first - at, last - first + 1)
            at = last + 1
    else:
        table = np.empty((len(firsts), 2), np.int64)
        table[:, 0] = firsts
        table[:, 1] = np.subtract(lasts, firsts) + 1
        table[1:, 0] -= np.add(lasts[:-1], 1)
        flat += table.ravel().tolist()
    if not bits:
        return flat
    encoded: list[int | bytes] = []
    done = 0
    for place, of_piece in bits.items():
        encoded += flat[2 * done : 2 * place + 1]
        encoded += _scattered(of_piece)
        done = place + 1
    return encoded + flat[2 * done :]


def _scattered(bits: int) -> list[int | bytes]:
    """Encode the bits behind a gap in the shorter of two ways."""
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    if len(data) < 2 * (bits & ~(bits << 1)).bit_count():
        return [data]
    edges = list(chain.from_iterable(row_sets.ranges_of(bits)))
    return [end - start for start, end in pairwise(edges)]


def _decode_holes(encoded: Iterable[Any]) -> Iterator[tuple[int, PieceColumns]]:
    values = iter(encoded)
    for ledger_id, flat in zip(values, values, strict=True):
        yield ledger_id, _decode_pieces(flat)


def _decode_pieces(flat: list[Any]) -> PieceColumns:
    """The pieces of one ledger; ValueError or TypeError if they are none."""
    if len(flat) % 2:
        raise ValueError("a gap is followed by nothing")
    gaps, extents = flat[::2], flat[1::2]
    bits: dict[int, int] = {}
    if bytes in set(map(type, extents)):
        for place, extent in enumerate(extents):
            if isinstance(extent, bytes):
                bits[place] = int.from_bytes(extent, "little")
                extents[place] = bits[place].bit_length()
    if min(gaps, default=0) < 0 or min(extents, default=1) < 1:
        raise ValueError("holes are not in order")
    if len(gaps) < MANY_PIECES:
        ends = list(accumulate(map(add, gaps, extents)))
        firsts = array("q", map(sub, ends, extents))
        return PieceColumns(firsts, array("q", [end - 1 for end in ends]), bits)
    lengths = np.array(extents, np.int64)
    ends_of_all = np.cumsum(np.array(gaps, np.int64) + lengths)
    firsts = array("q", (ends_of_all - lengths).tobytes())
    return PieceColumns(firsts, array("q", (ends_of_all - 1).tobytes()), bits)


def _encode_batches(batches: Iterable[tuple[Position, Iterable[tuple[int, ...]]]]) -> list[Any]:
    encoded: list[Any] = []
    for (ledger_id, entry_id), rows in batches:
        encoded += (ledger_id, entry_id, list(chain.from_iterable(rows)))
    return encoded


def _encode_suspects(suspects: Mapping[int, SuspectRows]) -> list[Any]:
    encoded: list[Any] = []
    for number, (origin, rows) in suspects.items():
        of_blocks = ((Position(ledger_id, first), ranges) for ledger_id, first, ranges in rows)
        encoded += (number, origin, _encode_batches(of_blocks))
    return encoded


def _decode_suspects(encoded: Iterable[Any]) -> Iterator[tuple[int, SuspectRows]]:
    for number, origin, blocks in _triples(encoded):
        rows = (
            (ledger_id, first, tuple(zip(flat[::2], flat[1::2], strict=True)))
            for ledger_id, first, flat in _triples(blocks)
        )
        yield number, SuspectRows(origin, tuple(rows))


def _encode_consumers(consumers: Iterable[KnownConsumer]) -> list[Any]:
    return list(chain.from_iterable((c.incarnation, c.name, c.consumer_type) for c in consumers))


def _triples(flat: Iterable[Any]) -> Iterable[tuple[Any, Any, Any]]:
    values = iter(flat)
    return zip(values, values, values, strict=True)


LOG_NAME = "cursor"
_REWRITE_AT_TIMES_STATE = 4
_REWRITE_AT_LEAST_BYTES = 256 * 1024


class CursorFlush:
    """One write of a cursor's log; `version` and `mark_delete` are durable once `run` returned."""

    __slots__ = ("_log", "_record", "_rewrites", "mark_delete", "version")

    def __init__(self, log: RecordLog, record: Record, rewrites: bool, cursor: ManagedCursor) -> None:
        self._log = log
        self._record = record
        self._rewrites = rewrites
        self.version = cursor.version
        self.mark_delete = cursor.mark_delete

    def run(self) -> None:
        """Write, sync, check the owner; blocks. After OSError or Fenced nothing may be promised."""
        if self._rewrites:
            self._log.rewrite([self._record])
        else:
            self._log.append([self._record])


class CursorStore:
    """The stored cursor of one durable subscription; its directory has one owner at a time."""

    def __init__(self, owner: DirectoryOwner, cursor: ManagedCursor, log: RecordLog) -> None:
        self.cursor = cursor
        self.epoch = owner.epoch
        self.durable_version = cursor.version
        self.durable_mark_delete = cursor.mark_delete
        self._owner = owner
        self._log = log
        self._running: CursorFlush | None = None

    @classmethod
    def create(
        cls,
        directory: Path,
        subscription: CursorSubscription,
        mark_delete: Position,
        disk: Disk = SYSTEM_DISK,
        least_epoch: int = 0,
    ) -> CursorStore:
        """Make a subscription's first cursor, durable when this returns; blocks.

        If one is there already (a crash came between its creation and the answer) it is opened as it stands.
        The directory has another name until all is in it: one without a log is damaged. OSError leaves
        nothing behind that a later call would not take up.
        """
        if directory.exists():
            return cls.open(directory, disk)
        unfinished = directory.with_name(directory.name + UNFINISHED)
        owner = DirectoryOwner.open(unfinished, create=True, least_epoch=least_epoch)
        return cls._start(owner, ManagedCursor(subscription, mark_delete), directory, disk)

    @classmethod
    def open(cls, directory: Path, disk: Disk = SYSTEM_DISK) -> CursorStore:
        """Take over an existing cursor; blocks.

        A torn end of its log is left out: nobody was promised it.

        Raises CorruptData if the log is missing or damaged, WrongNode if the directory is not there,
        UnsupportedFormatVersion.
        """
        return cls._start(DirectoryOwner.open(directory, create=False), None, directory, disk)

    @classmethod
    def _start(
        cls, owner: DirectoryOwner, new: ManagedCursor | None, directory: Path, disk: Disk
    ) -> CursorStore:
        log = RecordLog(owner, LOG_NAME, disk)
        try:
            cursor = read_cursor(owner.path) or new
            if cursor is None:
                raise CorruptData(str(owner.path / LOG_NAME), 0, "the cursor's log is missing")
            log.rewrite([(SNAPSHOT, snapshot_payload(cursor))])
            if owner.path != directory:
                owner.move_to(directory, disk)
        except BaseException:
            log.close()
            owner.close()
            raise
        return cls(owner, cursor, log)

    def begin_flush(self) -> CursorFlush | None:
        """Collect what changed; None if nothing did. RuntimeError while another flush runs."""
        if self._running is not None:
            raise RuntimeError("the cursor is being flushed already")
        cursor, log = self.cursor, self._log
        if cursor.version == self.durable_version and not log.is_broken:
            return None
        limit = max(_REWRITE_AT_LEAST_BYTES, _REWRITE_AT_TIMES_STATE * log.snapshot_size)
        rewrites = log.is_broken or log.size > limit
        record = (SNAPSHOT, snapshot_payload(cursor)) if rewrites else (CHANGES, changes_payload(cursor))
        cursor.changes = CursorChanges(is_recorded=True)
        self._running = CursorFlush(log, record, rewrites, cursor)
        return self._running

    def finish_flush(self, flush: CursorFlush) -> None:
        """The flush was run: its version is durable."""
        self._end(flush)
        self.durable_version = flush.version
        self.durable_mark_delete = flush.mark_delete

    def fail_flush(self, flush: CursorFlush) -> None:
        """The flush raised OSError: the next one writes the whole state into a new file."""
        self._end(flush)
        self._log.close()

    def _end(self, flush: CursorFlush) -> None:
        if flush is not self._running:
            raise RuntimeError("this is not the running flush")
        self._running = None

    def close(self) -> None:
        """Give the directory up, without a flush."""
        self._log.close()
        self._owner.close()


def read_cursor(directory: Path) -> ManagedCursor | None:
    """The cursor as its log has it, read without owning it; None without a log.

    Raises CorruptData, UnsupportedFormatVersion.
    """
    content = read_log(directory, LOG_NAME)
    if content is None:
        return None
    check_record_types(content.records, str(content.path))
    try:
        kind, payload = content.records[0]
        if kind != SNAPSHOT:
            raise ValueError(f"the first record has type {kind}")
        cursor = cursor_from_snapshot(payload)
        for kind, payload in content.records[1:]:
            if kind != CHANGES:
                raise ValueError(f"a record has type {kind}")
            apply_changes(cursor, payload)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise CorruptData(str(content.path), 0, f"not a cursor's log: {error}") from error
    cursor.version = 0
    cursor.changes = CursorChanges(is_recorded=True)
    return cursor
