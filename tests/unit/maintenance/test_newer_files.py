"""Files of a newer build, of every kind: refused and named, never misread, and left as they are."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.errors import UnsupportedFormatVersion
from pulsar_ray.format.checksum import checksum
from pulsar_ray.ledger.record_log import encode_record
from pulsar_ray.maintenance.damage import Kind
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.store.store_identity import read_identity
from tests.stored_directory import StoredTopic, make_directory
from tests.unit.maintenance.test_verify import FIRST_FRAME

NOW_MS = 5000


def seal(content: bytes, version_at: int, version: bytes) -> bytes:
    """Another version with a checksum that is right."""
    head = content[:version_at] + version + content[version_at + len(version) :]
    return head + struct.pack("<Q", checksum(head))


def replace(path: Path, offset: int, old_length: int, new: bytes) -> None:
    content = path.read_bytes()
    assert len(new) == old_length
    path.write_bytes(content[:offset] + new + content[offset + old_length :])


def newer_record(path: Path) -> None:
    """A record of another version behind all others."""
    record = encode_record(1, [])
    with path.open("ab") as file:
        file.write(seal(record[:-8], 5, b"\x02"))


def newer_epoch(path: Path) -> None:
    for slot in (0, 4096):
        head = path.read_bytes()[slot : slot + 16]
        replace(path, slot, 24, seal(head, 4, struct.pack("<I", 2)))


def manifest_record(topic: StoredTopic) -> None:
    newer_record(topic.manifest())


def cursor_record(topic: StoredTopic) -> None:
    newer_record(topic.cursor_log())


def cursor_record_type(topic: StoredTopic) -> None:
    with topic.cursor_log().open("ab") as file:
        file.write(encode_record(9, {}))


def index_record(topic: StoredTopic) -> None:
    (log,) = topic.directory.glob("s/1/delayed/index-*")
    newer_record(log)


def partition_epoch(topic: StoredTopic) -> None:
    newer_epoch(topic.directory / "epoch")


def cursor_epoch(topic: StoredTopic) -> None:
    newer_epoch(topic.directory / "s" / "1" / "epoch")


def segment_header(topic: StoredTopic) -> None:
    head = topic.segment.read_bytes()[:4088]
    replace(topic.segment, 0, 4096, seal(head, 8, struct.pack("<H", 2)))


def frame(topic: StoredTopic) -> None:
    head = topic.segment.read_bytes()[FIRST_FRAME : FIRST_FRAME + 72]
    replace(topic.segment, FIRST_FRAME, 80, seal(head, 4, b"\x02"))


def block(topic: StoredTopic) -> None:
    at = FIRST_FRAME + 80
    content = topic.segment.read_bytes()
    length = int.from_bytes(content[FIRST_FRAME + 64 : FIRST_FRAME + 68], "little")
    head, rest = content[at : at + 64], content[at + 72 : at + length]
    head = head[:2] + b"\x02" + head[3:]
    replace(topic.segment, at, length, head + struct.pack("<Q", checksum(head, rest)) + rest)


def catalog(topic: StoredTopic) -> None:
    path = topic.directory.parents[1] / "meta.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=77")
    connection.close()


def store(topic: StoredTopic) -> None:
    path = topic.directory.parents[1] / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 77}))


@pytest.mark.parametrize(
    "make_newer",
    [
        manifest_record,
        cursor_record,
        cursor_record_type,
        index_record,
        partition_epoch,
        cursor_epoch,
        segment_header,
        frame,
        block,
        catalog,
        store,
    ],
)
def test_every_kind_of_file_is_told_and_left(
    tmp_path: Path, make_newer: Callable[[StoredTopic], None]
) -> None:
    _, bills = make_directory(tmp_path)
    make_newer(bills)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert [damage.kind for damage in verify_directory(tmp_path).damages] == [Kind.VERSION]
    report = repair_directory(tmp_path, NOW_MS, is_dry_run=False, cuts_damaged=True)
    assert report.repairs == []
    assert [damage.kind for damage in report.left.damages] == [Kind.VERSION]
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("make_newer", [manifest_record, partition_epoch])
def test_a_partition_is_not_opened(tmp_path: Path, make_newer: Callable[[StoredTopic], None]) -> None:
    _, bills = make_directory(tmp_path)
    make_newer(bills)
    with pytest.raises(UnsupportedFormatVersion):
        bills.open()


@pytest.mark.parametrize("make_newer", [cursor_record, cursor_record_type, cursor_epoch])
def test_a_cursor_is_not_opened(tmp_path: Path, make_newer: Callable[[StoredTopic], None]) -> None:
    _, bills = make_directory(tmp_path)
    make_newer(bills)
    with pytest.raises(UnsupportedFormatVersion):
        CursorStore.open(cursor_directory(bills.directory, 1))


def test_a_store_is_not_opened(tmp_path: Path) -> None:
    _, bills = make_directory(tmp_path)
    store(bills)
    with pytest.raises(UnsupportedFormatVersion):
        read_identity(tmp_path)
