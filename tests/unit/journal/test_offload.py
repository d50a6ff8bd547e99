"""Closed segments that are only in the object store: left there, read, brought back, and taken over."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.shipping_link import ASYNC, SYNC
from pulsar_ray.config import OFF
from pulsar_ray.errors import JournalDamaged, RemoteStoreUnavailable
from pulsar_ray.journal import store_files
from pulsar_ray.journal.life import uploads
from pulsar_ray.journal.offloaded import segment_door
from pulsar_ray.journal.offloaded.direct_reading import reading_directly
from pulsar_ray.journal.offloaded.piece_cache import PieceCache
from pulsar_ray.journal.offloaded.segment_door import READ_AHEAD, SegmentDoor
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.ledger import offloaded
from pulsar_ray.ledger.offloaded import Offloaded, Piece, note_of, offloaded_names, read_note, write_note
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.maintenance.backup import back_up
from pulsar_ray.maintenance.repair import repair_directory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.message_id import Position
from tests.stored_blocks import append, change
from tests.unit.journal.test_store_journal import (
    DEADLINE_S,
    NUMBER,
    Partition,
    opened,
    runs,
    started,
    taken_over,
    until,
)
from tests.unit.managed_ledger.log.test_log_recovery import entries

pytestmark = pytest.mark.usefixtures("small_pieces")
SEGMENT = 64 * 1024
MESSAGE = 10_000
SETTINGS = {
    "segment_size_bytes": SEGMENT,
    "managed_ledger_max_entries_per_ledger": 12,
    "index_checkpoint_bytes": SEGMENT,
}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a segment of 64 KiB have several pieces, and nobody wait long."""
    monkeypatch.setattr(uploads, "PIECE_BYTES", 16 * 1024)
    monkeypatch.setattr(offloaded.READING, "wait_s", 0.3)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "a" / "p").mkdir(parents=True)
    (tmp_path / "b" / "p").mkdir(parents=True)
    return tmp_path / "a"


@contextmanager
def journal_of(home: Path, url: str) -> Iterator[StoreJournal]:
    journal = started(home, url)
    try:
        yield journal
    finally:
        journal.stop()


async def filled(home: Path, messages: int = 30) -> Partition:
    """A partition whose log has several closed segments, all of it shipped."""
    partition = Partition(home, SYNC, **SETTINGS)
    for seq in range(messages):
        append(partition.log, seq, size=MESSAGE)
    partition.link.when_durable(lambda: partition.confirmed.append(messages))
    await partition.until_confirmed(messages)
    return partition


def closed(log: ManagedLedger) -> list[str]:
    return [segment.path.name for segment in log.segments()[:-1]]


def old(log: ManagedLedger) -> list[str]:
    """Those that no start of the log reads: they lie before its last checkpoints."""
    return closed(log)[:2]


def seqs(log: ManagedLedger) -> list[int]:
    return [seq for _, seq in entries(log)]


def pieces(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "bucket" / "segments").rglob("*") if path.is_file()]


class Away:
    """Lets an object store fail, and counts what is read from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away, self.gets = False, list[str]()
        real = FileStore.get

        def get(store: FileStore, key: str) -> bytes | None:
            if key.startswith("segments/"):
                self.gets.append(key)
                if self.is_away:
                    raise RemoteStoreUnavailable("the bucket is away")
            return real(store, key)

        monkeypatch.setattr(FileStore, "get", get)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch)


@runs
async def test_offloaded_segments_free_the_disk_and_are_read_as_before(home: Path, url: str) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        names = closed(partition.log)
        assert len(names) >= 4
        assert await partition.link.move("offload", names) == names
        assert offloaded_names(partition.directory) == names
        assert not any((partition.directory / name).exists() for name in names)
        assert seqs(partition.log) == list(range(30))
        with SegmentReader(partition.directory / names[0]) as reader:
            assert reader.header().ledger_id == partition.log.segments()[0].ledger_id
            with pytest.raises(Exception, match="only 0 of 8 bytes"):
                reader.read(reader.size(), 8)
        partition.publish(30)
        await until(lambda: 30 in partition.confirmed)
        assert await partition.link.move("offload", names) == []
        partition.die()


@runs
async def test_the_open_segment_stays(home: Path, url: str) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        last = partition.log.segments()[-1].path
        assert await partition.link.move("offload", [last.name, "7-99.seg"]) == []
        assert last.exists()
        partition.die()


@runs
async def test_who_reads_a_segment_meanwhile_goes_on(home: Path, url: str) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        path = partition.log.segments()[0].path
        with SegmentReader(path) as before:
            whole = before.read(0, partition.log.segments()[0].end_offset)
            await partition.link.move("offload", closed(partition.log))
            assert before.read(0, len(whole)) == whole
        with SegmentReader(path) as behind:
            assert behind.size() == len(whole)
            assert behind.read(0, len(whole)) == whole
            assert behind.read(20_000, 30_000) == whole[20_000:50_000]
        partition.die()


@runs
async def test_who_reads_in_order_finds_what_comes_next(home: Path, url: str, bucket: Away) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        await partition.link.move("offload", closed(partition.log))
        with SegmentReader(partition.log.segments()[0].path) as reader:
            reader.read(0, 10)
            assert len(bucket.gets) == 1
            reader.read(16 * 1024, 10)
            await until(lambda: len(bucket.gets) == 2 + READ_AHEAD)
        seqs(partition.log)
        assert len(bucket.gets) == len(set(bucket.gets))
        status = journal.status()
        assert status["cacheHits"] > status["cacheMisses"] > 0
        partition.die()


@runs
async def test_a_bucket_that_is_away_costs_a_wait_and_a_typed_error(
    home: Path, url: str, bucket: Away
) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        await partition.link.move("offload", closed(partition.log))
        bucket.is_away = True
        with pytest.raises(RemoteStoreUnavailable, match=r"only in the object store.*the bucket is away"):
            seqs(partition.log)
        partition.publish(30)
        await until(lambda: 30 in partition.confirmed)
        bucket.is_away = False
        offloaded.READING.wait_s = DEADLINE_S  # it is asked for again by itself
        assert seqs(partition.log) == list(range(31))
        partition.die()


@pytest.mark.parametrize("how", ["gone", "damaged"])
@runs
async def test_an_object_that_is_gone_or_damaged_is_named(
    home: Path, url: str, tmp_path: Path, how: str
) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        names = closed(partition.log)
        await partition.link.move("offload", names)
        piece = sorted(pieces(tmp_path))[1]
        stored = piece.read_bytes()
        piece.unlink()
        if how == "damaged":
            piece.write_bytes(stored[:-20] + b"x" * 20)
        with pytest.raises(JournalDamaged, match=piece.name):
            seqs(partition.log)
        piece.unlink(missing_ok=True)
        piece.write_bytes(stored)
        assert seqs(partition.log) == list(range(30))
        partition.die()


@runs
async def test_a_missing_object_keeps_its_segment_here(home: Path, url: str, tmp_path: Path) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        names = closed(partition.log)
        journal._life.uploads.inline_bytes = 0
        journal.run(lambda life: life.checkpoint())
        for piece in pieces(tmp_path):
            piece.unlink()
        with pytest.raises(RemoteStoreUnavailable, match="is not there although it was written"):
            await partition.link.move("offload", names)
        assert all((partition.directory / name).exists() for name in names)
        partition.die()


@pytest.mark.parametrize("step", ["write_note", "unlink"])
@runs
async def test_a_kill_loses_nothing_wherever_it_strikes(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        names = closed(partition.log)
        with monkeypatch.context() as patch:

            def killed(*_: object, **__: object) -> None:
                raise RemoteStoreUnavailable("killed")

            def unlink(path: Path, missing_ok: bool = False) -> None:
                if path.suffix == ".seg":
                    killed()
                os.unlink(path)

            if step == "write_note":
                patch.setattr(store_files, "write_note", killed)
            else:
                patch.setattr(Path, "unlink", unlink)
            with pytest.raises(RemoteStoreUnavailable, match="killed"):
                await partition.link.move("offload", names)
        assert all((partition.directory / name).exists() for name in names)
        partition.die()
    with journal_of(home, url):
        again = Partition(home, SYNC, **SETTINGS)
        assert seqs(again.log) == list(range(30))
        again.publish(30)
        await again.until_confirmed(30)
        assert await again.link.move("offload", names) == names
        assert seqs(again.log) == list(range(31))
        again.die()


@runs
async def test_a_restart_serves_what_is_only_in_the_bucket_without_reading_it(
    home: Path, url: str, bucket: Away
) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        await partition.link.move("offload", old(partition.log))
        partition.die()
    bucket.gets.clear()
    with journal_of(home, url) as journal:
        assert not journal.is_ended
        again = Partition(home, SYNC, **SETTINGS)
        assert not again.log.corruptions
        again.publish(30)
        await again.until_confirmed(30)
        assert not bucket.gets
        assert seqs(again.log) == list(range(31))
        journal.run(lambda life: life.checkpoint())
        again.die()


@runs
async def test_an_adopted_partition_leaves_its_closed_segments_in_the_bucket(
    home: Path, url: str, tmp_path: Path, bucket: Away
) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        journal._life.uploads.inline_bytes = 0
        journal.run(lambda life: life.checkpoint())
        partition.die()
    other = tmp_path / "b"
    assert taken_over(other, url) == [str(NUMBER)]
    open_name = partition.log.segments()[-1].path.name
    assert {key.split("/")[2] for key in bucket.gets} <= {open_name, "manifest-1"}
    bucket.gets.clear()
    assert offloaded_names(other / "p" / str(NUMBER)) == closed(partition.log)
    with journal_of(other, url):
        again = Partition(other, SYNC, **SETTINGS)
        assert not any(name in key for key in bucket.gets for name in old(again.log))
        assert seqs(again.log) == list(range(30))
        again.publish(30)
        await again.until_confirmed(30)
        again.die()
    with journal_of(other, url), opened_at(other) as log:
        assert seqs(log) == list(range(31))


@runs
async def test_the_end_of_a_closed_segment_that_is_in_the_journal_alone_becomes_pieces_of_usual_size(
    home: Path, url: str, tmp_path: Path
) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home, 2)
        journal._life.uploads.inline_bytes = 0
        journal.run(lambda life: life.checkpoint())
        for seq in range(2, 30):
            append(partition.log, seq, size=MESSAGE)
        partition.link.when_durable(lambda: partition.confirmed.append(30))
        await partition.until_confirmed(2, 30)
        partition.die()
    other = tmp_path / "b"
    assert taken_over(other, url) == [str(NUMBER)]
    (name,) = offloaded_names(other / "p" / str(NUMBER))
    assert name == closed(partition.log)[0]
    note = read_note(other / "p" / str(NUMBER) / name)
    assert note is not None
    assert max(end - start for start, end, _ in note.pieces) <= uploads.PIECE_BYTES
    with journal_of(other, url), opened_at(other) as log:
        assert seqs(log) == list(range(30))


@runs
async def test_little_is_left_to_ship_of_what_was_put_in_pieces(home: Path, url: str) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        journal._life.uploads.inline_bytes = 0
        assert journal.run(lambda life: life.put_in_pieces(str(NUMBER))) == 0
        mirror = journal._life.mirror[str(NUMBER)]
        assert all(file.base == file.length for file in mirror.files.values())
        partition.die()


@runs
async def test_pieces_are_made_behind_a_checkpoint_that_is_under_way(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, is_begun, goes_on = FileStore.create, threading.Event(), threading.Event()

    def create_late(store: FileStore, key: str, body: bytes) -> bool:
        if key.startswith("segments/"):
            is_begun.set()
            goes_on.wait(DEADLINE_S)
        return create(store, key, body)

    with journal_of(home, url) as journal:
        partition = await filled(home, 2)
        journal._life.uploads.inline_bytes = 0
        monkeypatch.setattr(FileStore, "create", create_late)
        checkpoint = asyncio.to_thread(journal.run, lambda life: life.checkpoint())
        checkpointing = asyncio.ensure_future(checkpoint)
        await until(is_begun.is_set)
        for seq in range(2, 12):
            append(partition.log, seq, size=MESSAGE)
        partition.link.when_durable(lambda: partition.confirmed.append(12))
        await partition.until_confirmed(2, 12)
        left = asyncio.ensure_future(
            asyncio.to_thread(journal.run, lambda life: life.put_in_pieces(str(NUMBER)))
        )
        goes_on.set()
        await checkpointing
        assert await left == 0
        partition.die()


@contextmanager
def opened_at(home: Path) -> Iterator[ManagedLedger]:
    log = opened(home / "p" / str(NUMBER))
    try:
        yield log
    finally:
        log.close()


@runs
async def test_what_is_trimmed_is_deleted_in_the_bucket_too(home: Path, url: str, tmp_path: Path) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        await partition.link.move("offload", closed(partition.log))
        first = partition.log.segments()[0]
        assert any(first.path.name in str(piece) for piece in pieces(tmp_path))
        change(partition.log, partition.log.changes.trim(10**12))
        partition.link.flush()
        await until(lambda: not any(first.path.name in str(piece) for piece in pieces(tmp_path)))
        assert not note_of(first.path).exists()
        with pytest.raises(SegmentGone):
            SegmentReader(first.path)
        partition.die()


@runs
async def test_a_former_owner_takes_nothing_for_lost_that_its_successor_trimmed(
    home: Path, url: str, tmp_path: Path
) -> None:
    other = tmp_path / "b"
    with journal_of(home, url) as former, journal_of(other, url) as journal:
        partition = await filled(home)
        names = closed(partition.log)
        former._life.uploads.inline_bytes = 0
        former.run(lambda life: life.checkpoint())
        assert await partition.link.move("offload", names[:1]) == names[:1]
        assert journal.adopt(journal.seal("store-a")) == [str(NUMBER)]
        successor = Partition(other, SYNC, **SETTINGS)
        change(successor.log, successor.log.changes.trim(10**12))
        successor.link.flush()
        await until(lambda: not any(name in str(piece) for piece in pieces(tmp_path) for name in names[:2]))
        # It was told of nothing, as behind a pause.
        assert former.run(lambda life: life.offloading.fetch_back(str(NUMBER), names[:1])) == []
        assert former.run(lambda life: life.offloading.offload(str(NUMBER), names[1:2])) == []
        assert (partition.directory / names[1]).exists()
        successor.die()
        partition.die()


@runs
async def test_what_is_brought_back_in_one_term_does_not_go_on_in_the_next(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        [name] = names = old(partition.log)[:1]
        await partition.link.move("offload", names)
        partition.die()
        get, is_begun, is_back = FileStore.get, threading.Event(), threading.Event()

        def get_late(store: FileStore, key: str) -> bytes | None:
            if name in key and "/00000000000000-" not in key:
                is_begun.set()
                is_back.wait(DEADLINE_S)
            return get(store, key)

        monkeypatch.setattr(FileStore, "get", get_late)
        fetching = asyncio.create_task(
            asyncio.to_thread(journal.run, lambda life: life.offloading.fetch_back(str(NUMBER), names))
        )
        await until(is_begun.is_set)
        await asyncio.to_thread(journal.depart, NUMBER)
        assert await asyncio.to_thread(journal.take_back, NUMBER) == "store-a"
        is_back.set()
        assert await fetching == []
        again = Partition(home, SYNC, **SETTINGS)
        assert seqs(again.log) == list(range(30))
        assert journal.run(lambda life: life.offloading.fetch_back(str(NUMBER), names)) == names
        assert seqs(again.log) == list(range(30))
        again.die()


@runs
async def test_what_is_brought_back_twice_at_once_is_whole(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        names = old(partition.log)[:1]
        await partition.link.move("offload", names)
        get, asked = FileStore.get, list[str]()
        is_other_begun, is_first_done = threading.Event(), threading.Event()

        def get_late(store: FileStore, key: str) -> bytes | None:
            if key.startswith("segments/"):
                asked.append(key)
                if len(asked) == 3:
                    is_other_begun.wait(0.5)
                elif key in asked[:-1] and key != asked[0]:
                    is_other_begun.set()
                    is_first_done.wait(DEADLINE_S)
            return get(store, key)

        monkeypatch.setattr(FileStore, "get", get_late)

        def fetch_back() -> list[str]:
            return journal.run(lambda life: life.offloading.fetch_back(str(NUMBER), names))

        first = asyncio.create_task(asyncio.to_thread(fetch_back))
        await until(lambda: len(asked) == 3)
        other = asyncio.create_task(asyncio.to_thread(fetch_back))
        assert await first == names
        is_first_done.set()
        assert await other == []
        assert seqs(partition.log) == list(range(30))
        partition.die()


@runs
async def test_a_reader_follows_what_becomes_of_its_segment(home: Path, url: str) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        names = closed(partition.log)
        first = partition.log.segments()[0]
        whole = first.path.read_bytes()[: first.end_offset]
        await partition.link.move("offload", names)
        with SegmentReader(first.path) as back, SegmentReader(first.path) as gone:
            assert back.read(0, 100) == gone.read(0, 100) == whole[:100]
            await partition.link.move("fetch back", names)
            assert back.read(20_000, 30_000) == whole[20_000:50_000]
            await partition.link.move("offload", names)
            change(partition.log, partition.log.changes.trim(10**12))
            partition.link.flush()
            await until(lambda: not note_of(first.path).exists())
            assert back.read(40_000, 100) == whole[40_000:40_100]
            with pytest.raises(SegmentGone):
                gone.read(20_000, 30_000)
            with pytest.raises(SegmentGone):
                gone.read_into(20_000, bytearray(30_000))
        partition.die()


@runs
async def test_a_partition_stays_in_the_journal_until_all_of_it_is_back(
    home: Path, url: str, tmp_path: Path
) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        names = closed(partition.log)
        await partition.link.move("offload", names)
        partition.link.set_durability(OFF, 30.0)
        partition.link.set_durability(ASYNC, 30.0)
        partition.publish(30)
        await until(lambda: journal.status()["lagSeconds"] == 0.0)
        assert seqs(partition.log) == list(range(31))
        while offloaded_names(partition.directory):
            # Its connection ended with what was refused, perhaps just now.
            with suppress(RemoteStoreUnavailable):
                await partition.link.move("fetch back", names)
            await asyncio.sleep(0.005)
        assert all((partition.directory / name).exists() for name in names)
        partition.link.set_durability(OFF, 30.0)
        await until(lambda: not pieces(tmp_path))
        partition.die()
    with opened_at(home) as log:
        assert seqs(log) == list(range(31))


@runs
async def test_a_dropped_partition_leaves_nothing(home: Path, url: str, tmp_path: Path) -> None:
    with journal_of(home, url) as journal:
        partition = await filled(home)
        await partition.link.move("offload", closed(partition.log))
        partition.die()
        assert journal.drop(NUMBER)
        await until(lambda: not pieces(tmp_path))
        assert offloaded_names(partition.directory) == []


@runs
async def test_without_an_object_store_the_error_says_what_to_do(home: Path, url: str) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        await partition.link.move("offload", old(partition.log))
        partition.die()
    with opened_at(home) as log:
        with pytest.raises(RemoteStoreUnavailable, match="start the broker with --remote"):
            seqs(log)
        with SegmentReader(log.segments()[-1].path) as reader:
            assert not reader.is_offloaded


@runs
async def test_a_backlog_is_measured_without_reading_the_bucket(home: Path, url: str, bucket: Away) -> None:
    with journal_of(home, url):
        partition = await filled(home)
        log = partition.log
        start = Position(log.segments()[0].ledger_id, 0)
        before = log.begin_backlog(start).run()
        await partition.link.move("offload", closed(log))
        behind = log.begin_backlog(start).run()
        assert not bucket.gets
        assert behind.position == before.position
        assert 0 <= behind.size_bytes - before.size_bytes <= 80
        assert log.begin_backlog(start).run(10**15).position == log.last_position.next()
        limit = before.size_bytes // 2
        front = log.begin_backlog(start).run(0, limit)
        assert front.position >= log.begin_backlog(start).run(0, before.size_bytes).position
        assert not bucket.gets
        partition.die()


@runs
async def test_tools_without_a_broker_read_the_bucket(home: Path, url: str, tmp_path: Path) -> None:
    write_identity(home, StoreIdentity("store-a"))
    with journal_of(home, url):
        partition = await filled(home)
        await partition.link.move("offload", closed(partition.log))
        partition.die()
    assert not verify_directory(home).damages
    back_up(home, tmp_path / "copy", 1000)
    assert offloaded_names(tmp_path / "copy" / "p" / str(NUMBER)) == []
    with opened_at(tmp_path / "copy") as log:
        assert seqs(log) == list(range(30))
    gone = sorted(pieces(tmp_path))[1]
    gone.unlink()
    [damage] = verify_directory(home).damages
    assert gone.name in damage.reason
    shutil.rmtree(tmp_path / "bucket" / "segments")
    shutil.move(tmp_path / "bucket", tmp_path / "elsewhere")
    assert verify_directory(home).damages


@runs
async def test_a_lost_manifest_is_made_anew_of_offloaded_segments_too(home: Path, url: str) -> None:
    write_identity(home, StoreIdentity("store-a"))
    with journal_of(home, url):
        partition = await filled(home)
        await partition.link.move("offload", closed(partition.log))
        partition.die()
    for manifest in partition.directory.glob("manifest-*"):
        manifest.unlink()
    report = repair_directory(home, 1000, is_dry_run=False)
    assert not report.left.damages
    with reading_directly(home), opened_at(home) as log:
        assert seqs(log) == list(range(30))


def keys(cache: PieceCache, *names: str) -> list[str]:
    return [name for name in names if cache.has(name)]


def content(fd: int, length: int) -> bytes:
    try:
        return os.pread(fd, length, 0)
    finally:
        os.close(fd)


def test_a_full_cache_lets_the_least_used_go_and_pulls_nothing_away(tmp_path: Path) -> None:
    cache = PieceCache(tmp_path, 250, 0)
    for name in ("a", "b"):
        cache.keep(name, name.encode() * 100)
    reading = cache.open("b")
    assert cache.open("c") is None
    assert reading is not None
    os.close(cache.open("a") or -1)
    cache.keep("c", b"c" * 100)
    assert (keys(cache, "a", "b", "c"), cache.bytes, cache.evicted) == (["a", "c"], 200, 1)
    assert content(reading, 100) == b"b" * 100
    cache.keep("big", b"d" * 1000)
    assert keys(cache, "a", "c", "big") == ["big"]
    assert list(tmp_path.iterdir()) == []
    cache.close()


def test_a_full_disk_leaves_pieces_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PieceCache(tmp_path, 1000, 1 << 62)
    written = list[Path]()
    monkeypatch.setattr(PieceCache, "_file_of", lambda *_: written.append(tmp_path))
    cache.keep("a", b"a" * 100)
    fd = cache.open("a")
    assert fd is not None
    assert (content(fd, 100), written) == (b"a" * 100, [])
    cache.close()


def test_a_piece_is_found_while_the_segment_before_is_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "p" / "7"
    directory.mkdir(parents=True)
    write_note(directory / "2-0.seg", Offloaded(10, (Piece(0, 10, 5),)))
    # It goes between the list of names and the look at its note.
    monkeypatch.setattr(segment_door, "offloaded_names", lambda _: ["1-0.seg", "2-0.seg"])
    loop = asyncio.new_event_loop()
    door = SegmentDoor(tmp_path, FileStore(tmp_path), PieceCache(tmp_path, 1, 0), loop)
    wanted, before, behind = door._looked_up("7", "2-0.seg", 0)
    assert (wanted.piece, before, behind) == (Piece(0, 10, 5), "", [])
    door.close()
    loop.close()


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    note_of(tmp_path / "5-0.seg").write_bytes(b"PRO1 and rubbish")
    with pytest.raises(Exception, match="not a note of an offloaded segment"):
        SegmentReader(tmp_path / "5-0.seg")
    assert read_note(tmp_path / "6-0.seg") is None
