"""The bytes of manifests and cursor logs: what an older version wrote is read for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from pulsar_ray.errors import UnsupportedFormatVersion
from pulsar_ray.ledger.record_log import encode_record, read_records
from pulsar_ray.managed_ledger.cursor.cursor_store import cursor_from_snapshot, snapshot_payload
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, KnownConsumer, ManagedCursor
from pulsar_ray.managed_ledger.log.manifest import manifest_records
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    Compacted,
    Counters,
    DeduplicationSwitched,
    Expired,
    HoldMoved,
    IncarnationRecord,
    Lease,
    LeaseEnded,
    LedgerClosed,
    LedgersDeleted,
    ManifestRecord,
    SegmentClosed,
    SegmentOpened,
    SequenceIds,
    SequenceIdsForgotten,
    Subscription,
    SubscriptionProperties,
    SubscriptionRemoved,
    Terminated,
    TopicEpoch,
    TopicIdentity,
    Unused,
    from_log,
    to_log,
)
from pulsar_ray.model.message_id import Position

LEDGER = 5 << 31 | 1
NOW = 1_700_000_000_000
BLOCKS = (b"\1" * 8, b"\2" * 8, b"\3" * 8)
STORED = Path(__file__).parent / "stored_records.txt"

RECORDS: list[ManifestRecord] = [
    TopicIdentity(5, "persistent://public/default/t", -1, "c1"),
    Counters(2, 3, 4, LEDGER, 9, NOW, 1, LEDGER - 1, 7),
    SegmentOpened(LEDGER, 1, 7, NOW),
    SegmentClosed(LEDGER, 1, 4096, 9),
    LedgerClosed(LEDGER, 9, 4096, NOW + 1),
    LedgersDeleted([LEDGER]),
    Subscription(1, "s", True, LEDGER, 3, {"k": "v"}),
    HoldMoved(1, LEDGER, 4),
    SubscriptionRemoved(1),
    Lease(2, LEDGER, LEDGER + 1, NOW + 60_000),
    LeaseEnded(2),
    Checkpoint(LEDGER, 1, 8192, 10, NOW, [(LEDGER, 1, 4096, 7, NOW)], {99: 12}, [98], ((99, 12, *BLOCKS),)),
    IncarnationRecord(99, 12, *BLOCKS, 60_000),
    DeduplicationSwitched(True, LEDGER, 3),
    SequenceIds([("orders", 41, NOW), ("bills", 2**63 - 1, NOW + 1)]),
    SequenceIdsForgotten("pulsar-ray-query-q1", LEDGER, 9),
    TopicEpoch(3, True),
    SubscriptionProperties(1, {"k": "w"}),
    Expired(1, LEDGER, 5),
    Terminated(LEDGER, 9),
    Unused(1, NOW),
    Compacted(3, LEDGER, 9, [(LEDGER, 9, 2, 8, 8192, 4)], (LEDGER, 8, 1, 2), 8192, 6, NOW, NOW + 5),
]


def a_cursor() -> ManagedCursor:
    cursor = ManagedCursor(CursorSubscription("s", properties={"team": "a"}), Position(LEDGER, 3))
    cursor.set_ledgers([(LEDGER, 500)])
    cursor.acknowledge(LEDGER, 10, 19)
    cursor.acknowledge_bits(LEDGER, 100, int("10" * 100, 2))
    cursor.acknowledge_rows(Position(LEDGER, 30), ((0, 2), (5, 6)), 8, is_durable=True)
    cursor.count_redelivery(LEDGER, 31, 33, 2)
    cursor.count_row_failures(Position(LEDGER, 34), ((1, 2),))
    cursor.remember_consumer(KnownConsumer(2**64 - 1, "c", 1))
    return cursor


def stored() -> dict[str, bytes]:
    """Name -> the bytes of a record, as they are kept beside this file."""
    lines = STORED.read_text().split("\n\n")
    return {
        name: bytes.fromhex("".join(rest)) for name, *rest in (line.split() for line in lines if line.strip())
    }


def written() -> dict[str, bytes]:
    """The same, as it is written now."""
    found = {type(record).__name__: encode_record(*to_log(record)) for record in RECORDS}
    return {**found, "cursor": encode_record(1, snapshot_payload(a_cursor()))}


def payload_of(data: bytes) -> tuple[int, Any]:
    ((kind, payload, _end),) = read_records(data)
    return kind, payload


def test_every_kind_of_record_is_kept() -> None:
    assert {type(record) for record in RECORDS} == set(manifest_records._TYPES.values())
    assert stored().keys() == written().keys()


@pytest.mark.parametrize("name", sorted(written()))
def test_stored_bytes_never_change(name: str) -> None:
    assert written()[name].hex() == stored()[name].hex()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_what_was_stored_is_read_back(record: ManifestRecord) -> None:
    read = from_log(payload_of(stored()[type(record).__name__]), "manifest-1")
    assert type(read) is type(record)
    assert msgpack.packb(read) == msgpack.packb(record)


def test_a_stored_cursor_is_read_back() -> None:
    cursor = cursor_from_snapshot(payload_of(stored()["cursor"])[1])
    expected = a_cursor()
    assert cursor.subscription == expected.subscription
    assert cursor.mark_delete == expected.mark_delete == (LEDGER, 3)
    assert list(cursor.deleted) == list(expected.deleted)
    assert list(cursor.batch_acks()) == list(expected.batch_acks()) != []
    assert list(cursor.counts) == list(expected.counts) != []
    assert list(cursor.counts.all_row_failures()) == list(expected.counts.all_row_failures()) != []
    assert cursor.consumers == expected.consumers


def test_a_partition_of_version_0_1_names_no_cluster() -> None:
    old = bytes.fromhex(
        "3500000001010000000000009305bd70657273697374656e743a2f2f7075626c69632f64656661756c742f74ffe2c623b6b1f12709"
    )
    read = from_log(payload_of(old), "manifest-1")
    assert read == TopicIdentity(5, "persistent://public/default/t", -1, "")


def test_counters_of_version_0_1_know_of_nothing_trimmed() -> None:
    old = bytes.fromhex(
        "2c000000020100000000000097020304cf000000028000000109cf0000018bcfe5680001819929ce2d9fffae"
    )
    read = from_log(payload_of(old), "manifest-1")
    assert read == Counters(2, 3, 4, LEDGER, 9, NOW, 1, -1, -1)


def test_nothing_has_expired_for_a_subscription_of_an_older_build() -> None:
    read = from_log((7, [1, "s", True, LEDGER, 3, {"k": "v"}]), "manifest-1")
    assert read == Subscription(1, "s", True, LEDGER, 3, {"k": "v"}, -1, -1)


def test_an_incarnation_of_an_older_build_has_not_been_idle() -> None:
    read = from_log((13, [99, 12, *BLOCKS]), "manifest-1")
    assert read == IncarnationRecord(99, 12, *BLOCKS, idle_ms=0)


def test_a_record_of_a_later_version_may_have_more_fields_but_no_other_number() -> None:
    assert from_log((8, [1, LEDGER, 4, "more"]), "manifest-1") == HoldMoved(1, LEDGER, 4)
    with pytest.raises(UnsupportedFormatVersion, match=r"manifest-1 has records of type 99"):
        from_log((99, []), "manifest-1")
