"""A cursor's state and its changes as plain values for log records, and back.

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

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any

from pulsar_ray.managed_ledger.cursor.managed_cursor import (
    KnownConsumer,
    ManagedCursor,
    Subscription,
    SuspectRows,
)
from pulsar_ray.model import row_sets
from pulsar_ray.model.position import Position
from pulsar_ray.model.position_ranges import PositionRanges
from pulsar_ray.model.scattered_ints import Piece

SNAPSHOT = 1
CHANGES = 2


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
    cursor = ManagedCursor(Subscription(name, is_durable, dict(properties)))
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
    encoded: list[Any] = []
    for ledger_id, pieces in holes.pieces():
        flat: list[int | bytes] = []
        at = 0
        for first, last, bits in pieces:
            if bits is None:
                flat += (first - at, last - first + 1)
            else:
                flat += (first - at, *_scattered(bits))
            at = last + 1
        encoded += (ledger_id, flat)
    return encoded


def _scattered(bits: int) -> list[int | bytes]:
    """Encode the bits behind a gap in the shorter of two ways."""
    data = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    if len(data) < 2 * (bits & ~(bits << 1)).bit_count():
        return [data]
    edges = list(chain.from_iterable(row_sets.ranges_of(bits)))
    return [end - start for start, end in pairwise(edges)]


def _decode_holes(encoded: Iterable[Any]) -> Iterator[tuple[int, Piece]]:
    values = iter(encoded)
    for ledger_id, flat in zip(values, values, strict=True):
        at = 0
        for gap, extent in zip(flat[::2], flat[1::2], strict=True):
            first, bits = at + gap, None
            if isinstance(extent, bytes):
                bits = int.from_bytes(extent, "little")
                extent = bits.bit_length()
            at = first + extent
            yield ledger_id, Piece(first, at - 1, bits)


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
    return list(chain.from_iterable((c.consumer_id, c.name, c.consumer_type) for c in consumers))


def _triples(flat: Iterable[Any]) -> Iterable[tuple[Any, Any, Any]]:
    values = iter(flat)
    return zip(values, values, values, strict=True)
