"""What `verify` says of a data directory: whole, in use, and damaged in every place."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.cli.target import Target
from pulsar_ray.errors import NotOurDataDirectory
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.record_log import encode_record
from pulsar_ray.maintenance.damage import Damage, Kind
from pulsar_ray.maintenance.verify import verify_directory
from tests.stored_blocks import append, change
from tests.stored_directory import CLUSTER, MESSAGES, STORE, SUBSCRIPTION, StoredTopic, make_directory
from tests.unit.cli.conftest import run

__all__ = ["run"]

FIRST_FRAME = 4096


def flip(path: Path, offset: int, bit: int = 4) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= bit
    path.write_bytes(content)


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def frame_length(topic: StoredTopic) -> int:
    """Of each of the topic's frames, which have one block of three entries."""
    with SegmentReader(topic.segment) as reader:
        return reader.read_frames(FIRST_FRAME, reader.size(), 1)[0].header.total_length


def only_damage(path: Path) -> Damage:
    (damage,) = verify_directory(path).damages
    return damage


def lost(path: Path) -> list[tuple[str, int, int, int | None]]:
    """Topic, first and last entry and messages of all that is lost; nothing else may be damaged."""
    damages = verify_directory(path).damages
    assert {damage.kind for damage in damages} == {Kind.ENTRIES}
    return [(d.topic, d.first_entry_id, d.last_entry_id, d.messages) for d in damages]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_whole_directory_is_clean_and_left_as_it_is(tmp_path: Path, is_closed: bool) -> None:
    make_directory(tmp_path, is_closed=is_closed)

    def content() -> dict[str, str]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = content()
    findings = verify_directory(tmp_path)
    assert (findings.damages, findings.remarks) == ([], [])
    totals = findings.totals
    assert (totals.partitions, totals.ledgers, totals.entries, totals.messages) == (2, 2, 48, 48)
    assert (totals.segments, totals.cursors, totals.delayed_indexes) == (2, 2, 2)
    assert content() == before


@pytest.mark.parametrize("at", [0, 79, 80, 150])
def test_one_flipped_bit_loses_its_block_alone(tmp_path: Path, at: int) -> None:
    """In a frame's header or in its block, in the middle of the log."""
    orders, _ = make_directory(tmp_path)
    flip(orders.segment, FIRST_FRAME + 2 * frame_length(orders) + at)
    ((topic, first, last, messages),) = lost(tmp_path)
    assert (topic, first, last) == (orders.name, 6, 8)
    # An intact header of the frame counts its messages.
    assert messages == (3 if at >= 80 else None)


def test_a_segment_that_was_cut_loses_what_was_acknowledged_behind_the_cut(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    cut(orders.segment, FIRST_FRAME + 100)
    # Entry 20 was acknowledged: so everything up to there had been confirmed.
    assert lost(tmp_path) == [(orders.name, 0, 2, None), (orders.name, 3, MESSAGES - 4, None)]


def test_a_closed_segment_that_was_cut_or_is_gone_loses_the_rest(tmp_path: Path) -> None:
    orders, bills = make_directory(tmp_path, is_closed=True)
    cut(orders.segment, FIRST_FRAME + 3 * frame_length(orders) + 1)
    bills.segment.unlink()
    ours, theirs = lost(tmp_path)
    assert ours == (orders.name, 9, MESSAGES - 1, None)
    assert theirs == (bills.name, 0, MESSAGES - 1, None)


def test_a_write_that_was_under_way_is_no_damage(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    with orders.segment.open("ab") as file:
        file.write(b"PRFM" + bytes(60) + b"torn")
    findings = verify_directory(tmp_path)
    assert findings.is_clean
    (remark,) = findings.remarks
    assert str(orders.segment) in remark


def test_damage_to_a_segments_header_loses_no_entry(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    flip(orders.segment, 100)
    damage = only_damage(tmp_path)
    assert (damage.kind, damage.path, damage.entries) == (Kind.SEGMENT, str(orders.segment), 0)


def spoil_manifest(topic: StoredTopic) -> None:
    flip(topic.manifest(), 20)


def lose_manifest(topic: StoredTopic) -> None:
    topic.manifest().unlink()


def spoil_cursor(topic: StoredTopic) -> None:
    flip(topic.cursor_log(), 20)


def lose_cursor(topic: StoredTopic) -> None:
    topic.cursor_log().unlink()


def spoil_index(topic: StoredTopic) -> None:
    (run,) = topic.directory.glob("s/1/delayed/run-*")
    flip(run, 7)


def lose_index_run(topic: StoredTopic) -> None:
    (run,) = topic.directory.glob("s/1/delayed/run-*")
    run.unlink()


def spoil_epoch(topic: StoredTopic) -> None:
    for slot in (0, 4096):
        flip(topic.directory / "epoch", slot + 9)


def spoil_move_note(topic: StoredTopic) -> None:
    (topic.directory / "moved").write_bytes(b"[1")


def spoil_term(topic: StoredTopic) -> None:
    (topic.directory / "term").write_bytes(b"")


def lose_directory(topic: StoredTopic) -> None:
    shutil.rmtree(topic.directory)


@pytest.mark.parametrize(
    ("spoil", "kind", "names_subscription"),
    [
        (spoil_manifest, Kind.MANIFEST, False),
        (lose_manifest, Kind.MANIFEST, False),
        (spoil_cursor, Kind.CURSOR, True),
        (lose_cursor, Kind.CURSOR, True),
        (spoil_index, Kind.DELAYED_INDEX, True),
        (lose_index_run, Kind.DELAYED_INDEX, True),
        (spoil_epoch, Kind.EPOCH, False),
        (spoil_move_note, Kind.NOTE, False),
        (spoil_term, Kind.NOTE, False),
        (lose_directory, Kind.PARTITION, False),
    ],
)
def test_each_damaged_file_is_named_with_its_topic(
    tmp_path: Path, spoil: Callable[[StoredTopic], None], kind: Kind, names_subscription: bool
) -> None:
    _, bills = make_directory(tmp_path)
    spoil(bills)
    damages = [damage for damage in verify_directory(tmp_path).damages if damage.kind is kind]
    (damage,) = damages
    assert damage.path.startswith(str(bills.directory))
    if kind is not Kind.EPOCH:
        assert damage.topic == bills.name
    assert damage.subscription == (SUBSCRIPTION if names_subscription else "")


def test_a_directory_that_was_made_and_is_not_there_is_named(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    lose_directory(orders)
    damage = only_damage(tmp_path)
    assert (damage.kind, damage.topic) == (Kind.PARTITION, orders.name)


def test_a_damaged_catalog_and_store_are_named(tmp_path: Path) -> None:
    make_directory(tmp_path)
    catalog = tmp_path / "meta.sqlite"
    whole = catalog.read_bytes()
    catalog.write_bytes(b"x" * len(whole))
    assert only_damage(tmp_path).kind is Kind.CATALOG
    catalog.unlink()
    assert only_damage(tmp_path).kind is Kind.CATALOG
    catalog.write_bytes(whole)
    (tmp_path / "store.json").write_text("{")
    assert only_damage(tmp_path).kind is Kind.STORE
    (tmp_path / "store.json").unlink()
    assert only_damage(tmp_path).kind is Kind.STORE


def test_a_page_of_the_catalog_that_was_overwritten_is_found(tmp_path: Path) -> None:
    make_directory(tmp_path)
    catalog = tmp_path / "meta.sqlite"
    content = bytearray(catalog.read_bytes())
    content[2 * 4096 : 3 * 4096] = b"\xff" * 4096
    catalog.write_bytes(content)
    assert {damage.kind for damage in verify_directory(tmp_path).damages} == {Kind.CATALOG}


def test_a_directory_of_another_cluster_or_partition_is_strange(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    store = tmp_path / "store.json"
    store.write_text(store.read_text().replace(CLUSTER, "cluster-2"))
    damages = verify_directory(tmp_path).damages
    assert [damage.kind for damage in damages] == [Kind.PARTITION, Kind.PARTITION, Kind.CATALOG]
    store.write_text(store.read_text().replace("cluster-2", CLUSTER))
    shutil.copytree(orders.directory, tmp_path / "p" / "77")
    damage = only_damage(tmp_path)
    assert (damage.kind, damage.topic) == (Kind.PARTITION, orders.name)


def test_files_of_a_newer_build_are_no_damage_and_no_success(tmp_path: Path) -> None:
    orders, _ = make_directory(tmp_path)
    with orders.manifest().open("ab") as file:
        file.write(encode_record(99, []))
    with sqlite3.connect(tmp_path / "meta.sqlite") as catalog:
        catalog.execute("PRAGMA user_version=77")
    catalog.close()
    damages = verify_directory(tmp_path).damages
    assert [damage.kind for damage in damages] == [Kind.VERSION, Kind.VERSION]
    assert "records of type 99" in damages[0].reason
    assert "format version 77" in damages[1].reason


def test_a_directory_that_is_written_meanwhile_is_clean(tmp_path: Path) -> None:
    """Ledgers begin, are trimmed and rolled, cursors move, while it is verified again and again."""
    orders, _ = make_directory(tmp_path)
    log = orders.open()
    done = threading.Event()
    problems: list[Exception] = []

    def write() -> None:
        try:
            for seq in range(MESSAGES, 10_000_000):
                if done.is_set():
                    return
                append(log, seq, incarnation=9, size=3000, now_ms=seq)
                if seq % 50 == 0:
                    log.changes.end_log()
                    change(log, log.changes.move_hold(1, log.last_position))
                    change(log, log.changes.trim(seq))
        except Exception as error:  # noqa: BLE001
            problems.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        looks, deadline = 0, time.monotonic() + 100
        while looks < 6 or log.trimmed_position < (orders.ledger_id + 3, 0):
            assert verify_directory(tmp_path).damages == []
            assert time.monotonic() < deadline
            assert problems == []
            looks += 1
    finally:
        done.set()
        writer.join()
        log.close()


def test_the_command_says_all_of_it_and_exits_by_it(tmp_path: Path, run: Callable) -> None:  # type: ignore[type-arg]
    orders, _ = make_directory(tmp_path)
    clean = run(Target(), "verify", str(tmp_path))
    assert (clean.exit_code, clean.stderr) == (0, "")
    assert "all is whole (partitions: 2, ledgers: 2, entries: 48" in clean.stdout
    orders.segment.unlink()
    damaged = run(Target(data_dir=str(tmp_path)), "verify")
    assert damaged.exit_code == 4
    assert f"{orders.name}: lost {orders.ledger_id}:0 to {orders.ledger_id}:20 (21 entries)" in damaged.stdout
    assert "damaged places: 1, entries lost: 21" in damaged.stdout
    as_json = run(Target(), "verify", str(tmp_path), "--json")
    assert as_json.exit_code == 4
    told = json.loads(as_json.stdout)
    assert told["clean"] is False
    assert told["damages"][0]["entries"] == 21
    assert told["damages"][0]["topic"] == orders.name
    assert told["checked"]["partitions"] == 2


def test_bad_usage_is_told_from_damage(tmp_path: Path, run: Callable) -> None:  # type: ignore[type-arg]
    with pytest.raises(NotOurDataDirectory, match="is no data directory"):
        verify_directory(tmp_path)
    assert run(Target(), "verify", str(tmp_path)).exit_code == 2
    assert run(Target(), "verify", str(tmp_path / "none")).exit_code == 2
    assert STORE not in run(Target(), "verify", str(tmp_path)).output
