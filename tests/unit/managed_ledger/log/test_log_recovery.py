"""What an owner finds that comes after a crash: torn tails, corruption, lost files, stray files."""

from __future__ import annotations

import errno
import itertools
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.errors import CorruptData, NotOurDataDirectory, WrongNode
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity, read_identities
from pulsar_ray.managed_ledger.log.producer_incarnations import New, Repeat
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import IDENTITY, abandon, append, append_blocks, block, change, open_log, settings

FIRST_LEDGER = IDENTITY.number << 31


def entries(log: ManagedLedger) -> list[tuple[Position, int]]:
    """Every readable entry with its entry_seq."""
    found = []
    for segment in log.segments():
        with SegmentReader(segment.path) as reader:
            for offset, frame in reader.read_frames(4096, segment.end_offset, 1 << 40):
                at, entry_id = offset + frame.header_length, frame.first_entry_id
                for span in frame.blocks:
                    header = reader.read_block_header(at, span.length)
                    found += [
                        (Position(frame.ledger_id, entry_id + row), header.entry_seq + row)
                        for row in range(span.entries)
                    ]
                    at += span.length
                    entry_id += span.entries
    return found


def leave(log: ManagedLedger, closed: bool) -> None:
    if closed:
        log.close()
    else:
        abandon(log)


def crashed_log(path: Path, frames: int = 3) -> tuple[Path, list[int]]:
    """A log left as by kill -9; its segment file and where each of its frames ends."""
    log = open_log(path)
    ends = []
    for seq in range(frames):
        append(log, 2 * seq, 2 * seq + 1)
        ends.append(log.segments()[0].end_offset)
    abandon(log)
    return log.segments()[0].path, ends


def test_a_new_log_is_empty_and_leaves_no_ledger_file(tmp_path: Path) -> None:
    for epoch in range(1, 4):
        log = open_log(tmp_path)
        assert log.epoch == epoch
        assert log.last_position == EARLIEST
        assert log.first_position == EARLIEST.next()
        assert log.segments() == []
        leave(log, epoch % 2 == 0)
    assert not list(tmp_path.glob("*.seg"))


def test_empty_epochs_between_leave_no_ledger_file(tmp_path: Path) -> None:
    crashed_log(tmp_path)
    for _ in range(3):
        abandon(open_log(tmp_path))
    log = open_log(tmp_path)
    assert len(list(tmp_path.glob("*.seg"))) == 1
    append(log, 6)
    assert [seq for _, seq in entries(log)] == list(range(7))


@pytest.mark.parametrize("closed", [False, True])
def test_entries_survive_and_the_next_go_to_a_new_ledger(tmp_path: Path, closed: bool) -> None:
    log = open_log(tmp_path)
    result = append_blocks(log, [block(0), block(1, rows=5), block(6)])
    assert result.positions == [
        Position(FIRST_LEDGER, 0),
        Position(FIRST_LEDGER, 1),
        Position(FIRST_LEDGER, 6),
    ]
    leave(log, closed)
    again = open_log(tmp_path, must_exist=True)
    assert again.last_position == Position(FIRST_LEDGER, 6)
    assert again.corruptions == []
    assert append(again, 7).positions == [Position(FIRST_LEDGER + 1, 0)]
    assert [seq for _, seq in entries(again)] == list(range(8))


def copies(crashed: Path) -> Iterator[Path]:
    """The crashed directory again and again, each time as it was."""
    for i in itertools.count():
        copy = crashed.parent / f"copy-{i}"
        shutil.copytree(crashed, copy)
        yield copy


def test_a_tail_torn_at_any_byte_ends_the_ledger_before_it(tmp_path: Path) -> None:
    path, ends = crashed_log(tmp_path / "log")
    content = path.read_bytes()
    for cut, directory in zip(range(ends[1], ends[2]), copies(tmp_path / "log"), strict=False):
        (directory / path.name).write_bytes(content[:cut])
        log = open_log(directory)
        assert log.last_position == Position(FIRST_LEDGER, 3)
        assert log.corruptions == []
        assert (directory / path.name).read_bytes() == content[:cut], "the file is never truncated"
        abandon(log)
    assert open_log(tmp_path / "log").last_position == Position(FIRST_LEDGER, 5)


def test_a_flipped_bit_in_the_last_frame_ends_the_ledger_before_it(tmp_path: Path) -> None:
    path, ends = crashed_log(tmp_path / "log")
    content = path.read_bytes()
    for i, directory in zip(range(ends[1], ends[2]), copies(tmp_path / "log"), strict=False):
        (directory / path.name).write_bytes(content[:i] + bytes([content[i] ^ 4]) + content[i + 1 :])
        log = open_log(directory)
        assert log.last_position == Position(FIRST_LEDGER, 3)
        assert log.corruptions == []
        abandon(log)


def test_a_flipped_bit_in_a_confirmed_frame_is_reported_and_not_cut(tmp_path: Path) -> None:
    path, ends = crashed_log(tmp_path / "log", frames=4)
    content = path.read_bytes()
    for i, directory in zip(range(ends[1], ends[2]), copies(tmp_path / "log"), strict=False):
        (directory / path.name).write_bytes(content[:i] + bytes([content[i] ^ 4]) + content[i + 1 :])
        log = open_log(directory)
        assert log.last_position == Position(FIRST_LEDGER, 7), "what lies behind the damage stays"
        [corruption] = log.corruptions
        assert (corruption.path, corruption.offset) == (str(directory / path.name), ends[1])
        assert (corruption.first_entry_id, corruption.last_entry_id) == (4, 5)
        abandon(log)


def test_a_frame_lost_whole_before_an_intact_one_is_corruption(tmp_path: Path) -> None:
    path, ends = crashed_log(tmp_path)
    content = bytearray(path.read_bytes())
    content[ends[0] : ends[1]] = bytes(ends[1] - ends[0])
    path.write_bytes(content)
    log = open_log(tmp_path)
    # Each frame proves its predecessors durable, so this can only be damage.
    assert [c.first_entry_id for c in log.corruptions] == [2]
    assert log.last_position == Position(FIRST_LEDGER, 5)


def test_damage_below_a_checkpoint_is_found_when_read_not_at_open(tmp_path: Path) -> None:
    config = settings(index_checkpoint_entries=10)
    log = open_log(tmp_path, config=config)
    for seq in range(100):
        append(log, seq)
    path = log.segments()[0].path
    abandon(log)
    content = bytearray(path.read_bytes())
    content[4096 + 200] ^= 1
    path.write_bytes(content)
    again = open_log(tmp_path, config=config)
    assert again.last_position.entry_id == 99
    assert again.corruptions == []
    end = again.segments()[0].end_offset
    with SegmentReader(path) as reader:
        sound = reader.read_frames(4096, end, 1 << 20)
        assert len(sound) < 100
        damaged = sound[-1].offset + sound[-1].header.total_length
        with pytest.raises(CorruptData):
            reader.read_frames(damaged, end, 1 << 20)


def test_a_cut_above_the_checkpoint_but_in_what_it_proves_is_corruption(tmp_path: Path) -> None:
    config = settings(index_checkpoint_entries=10)
    log = open_log(tmp_path, config=config)
    for seq in range(31):
        append(log, seq)
    path, frame = log.segments()[0].path, (log.segments()[0].end_offset - 4096) // 31
    abandon(log)
    path.write_bytes(path.read_bytes()[: 4096 + 25 * frame + 3])
    again = open_log(tmp_path, config=config)
    assert [(c.first_entry_id, c.last_entry_id) for c in again.corruptions] == [(25, 29)]
    assert again.last_position.entry_id == 29, "confirmed entries keep their ids"
    assert append(again, 31).positions == [Position(FIRST_LEDGER + 1, 0)]


def cut_behind(path: Path, frames: int, of_frames: int) -> None:
    """Cut a segment of frames of one size behind some of them."""
    with SegmentReader(path) as reader:
        found = reader.read_frames(4096, reader.size(), 1 << 20)
    ends = [frame.offset + frame.header.total_length for frame in found]
    assert len(ends) == of_frames
    path.write_bytes(path.read_bytes()[: ends[frames - 1]])


def record_end(log: ManagedLedger) -> None:
    recorded = log.begin_recorded_end()
    if recorded is not None:
        recorded.run()


def check_loss(directory: Path, first: int, last: int) -> None:
    """The entries are named at the first start, whoever reads meets their end, and later starts name it."""
    log = open_log(directory)
    assert [(c.first_entry_id, c.last_entry_id) for c in log.corruptions] == [(first, last)]
    assert log.last_position.entry_id == last, "confirmed entries keep their ids"
    [segment] = log.segments()
    with SegmentReader(segment.path) as reader:
        found = reader.read_frames(4096, segment.end_offset, 1 << 20)
        assert [frame.header.first_entry_id for frame in found] == list(range(first))
        behind = found[-1].offset + found[-1].header.total_length
        with pytest.raises(CorruptData):
            reader.read_frames(behind, segment.end_offset, 1 << 20)
    append(log, 99)
    abandon(log)
    assert len(open_log(directory).corruptions) == 1


def test_a_recorded_end_names_what_a_cut_takes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for seq in range(5):
        append(log, seq)
    record_end(log)
    assert log.begin_recorded_end() is None, "there is nothing new"
    abandon(log)
    cut_behind(log.segments()[0].path, 3, of_frames=5)
    check_loss(tmp_path, 3, 4)


def test_the_next_append_records_the_end_if_one_is_under_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    commit = log.begin_append([block(1)], 1000)
    assert log.begin_recorded_end() is None
    commit.run()
    log.finish_append(commit)
    append(log, 2)
    abandon(log)
    cut_behind(log.segments()[0].path, 1, of_frames=3)
    check_loss(tmp_path, 1, 1)


def test_acknowledged_entries_that_a_cut_takes_are_named(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    kept = change(log, log.changes.register("kept", True, "earliest"))
    append(log, 1)
    append(log, 2)
    change(log, log.changes.move_hold(kept.number, Position(FIRST_LEDGER, 1)))
    abandon(log)
    cut_behind(log.segments()[0].path, 1, of_frames=3)
    check_loss(tmp_path, 1, 1)


def test_nothing_is_lost_behind_a_recorded_end_that_is_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path, config=settings(managed_ledger_max_entries_per_ledger=4))
    for seq in range(20):
        append(log, seq)
        if seq % 3 == 0:
            record_end(log)
        if seq % 7 == 0:
            change(log, log.changes.register(f"kept-{seq}", True, "latest"))
    points = log.index_points()
    abandon(log)
    again = open_log(tmp_path)
    assert (again.corruptions, again.last_position) == ([], log.last_position)
    assert again.index_points() == points
    assert [seq for _, seq in entries(again)] == list(range(20))


def test_an_end_that_the_disk_refuses_to_record_harms_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    append(log, 0)
    disk.fail("writev", errno.ENOSPC)
    record_end(log)
    assert not disk.errors["writev"]
    append(log, 1)
    change(log, log.changes.register("kept", True, "earliest"))
    abandon(log)
    again = open_log(tmp_path)
    assert (again.corruptions, [seq for _, seq in entries(again)]) == ([], [0, 1])


def test_places_stay_sorted_behind_a_snapshot_that_came_between_two_recorded_ends(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = open_log(tmp_path, config=settings(managed_ledger_max_entries_per_ledger=2), disk=disk)
    for seq in range(9):
        append(log, seq)
    disk.fail("writev", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        change(log, log.changes.register("kept", True, "earliest"))
    change(log, log.changes.register("kept", True, "earliest"))
    for seq in range(9, 12):
        append(log, seq)
        record_end(log)
    abandon(log)
    assert open_log(tmp_path).index_points() == log.index_points()


def test_an_empty_open_ledger_is_dropped(tmp_path: Path) -> None:
    path, _ = crashed_log(tmp_path)
    path.write_bytes(path.read_bytes()[:4100])
    log = open_log(tmp_path)
    assert log.last_position == EARLIEST
    assert log.segments() == []
    assert not path.exists()
    assert append(log, 0).positions == [Position(FIRST_LEDGER + 1, 0)], "ledger ids are never used again"


def test_lost_segment_files_are_reported(tmp_path: Path) -> None:
    config = settings(segment_size_bytes=64 * 1024)
    log = open_log(tmp_path, config=config)
    for seq in range(4):
        append(log, seq, size=50_000)
    first, second, *_ = [segment.path for segment in log.segments()]
    log.close()
    first.unlink()
    second.write_bytes(second.read_bytes()[:5000])
    again = open_log(tmp_path, config=config)
    assert [c.path for c in again.corruptions] == [str(first), str(second)]
    assert again.last_position == Position(FIRST_LEDGER, 3)


def test_files_the_manifest_does_not_list_are_removed_only_if_it_is_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, 0)
    manifest = tmp_path / f"manifest-{log.epoch}"
    abandon(log)
    stray = tmp_path / f"{FIRST_LEDGER + 5}-0.seg"
    stray.write_bytes(b"late")
    manifest.write_bytes(manifest.read_bytes() + b"torn")
    log = open_log(tmp_path)
    assert stray.exists()
    abandon(log)
    log = open_log(tmp_path)
    assert not stray.exists()
    assert append(log, 1).positions[0] > Position(FIRST_LEDGER + 5, 0)
    assert [seq for _, seq in entries(log)] == [0, 1]


def test_the_tail_is_synced_before_it_counts(tmp_path: Path) -> None:
    path, _ = crashed_log(tmp_path)
    disk = FaultyDisk()
    disk.fail("fdatasync", 0, 5)  # the epoch's passes, the segment's does not
    with pytest.raises(OSError, match="Input/output"):
        open_log(tmp_path, disk=disk)
    before = path.read_bytes()
    disk.calls.clear()
    log = open_log(tmp_path, disk=disk)
    assert log.last_position == Position(FIRST_LEDGER, 5)
    assert path.read_bytes() == before
    synced = disk.calls.index("fdatasync", disk.calls.index("pwrite", 2))
    assert synced < disk.calls.index("rename"), "durable before the new manifest says so"


def test_the_manifest_is_torn_or_corrupt_at_every_byte(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, 0)
    kept = change(log, log.changes.register("kept", True, "earliest"))
    manifest = tmp_path / "log" / f"manifest-{log.epoch}"
    end = manifest.stat().st_size
    change(log, log.changes.register("last", True, "earliest"))
    abandon(log)
    content = manifest.read_bytes()
    damages = [content[:cut] for cut in range(end, len(content))]
    damages += [content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :] for i in range(len(content))]
    for damaged, directory in zip(damages, copies(tmp_path / "log"), strict=False):
        (directory / manifest.name).write_bytes(damaged)
        if damaged[:end] != content[:end]:
            with pytest.raises(CorruptData):
                open_log(directory)
            continue
        log = open_log(directory)
        assert log.changes.subscriptions() == [kept]
        assert log.last_position == Position(FIRST_LEDGER, 0)
        abandon(log)


def test_a_directory_that_is_missing_or_holds_another_topic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongNode):
        open_log(tmp_path / "7", must_exist=True)
    assert not (tmp_path / "7").exists()
    open_log(tmp_path / "7").close()
    for other in (
        IDENTITY._replace(number=8),
        IDENTITY._replace(topic="persistent://public/default/other"),
        IDENTITY._replace(partition=3),
    ):
        with pytest.raises(NotOurDataDirectory, match=re.escape(f"holds {IDENTITY.topic} as partition")):
            ManagedLedger.open(tmp_path / "7", other, settings(), 0)
    log = open_log(tmp_path / "7")
    append(log, 0)
    abandon(log)
    for manifest in (tmp_path / "7").glob("manifest-*"):
        manifest.unlink()
    with pytest.raises(CorruptData, match="no manifest"):
        open_log(tmp_path / "7")


def test_a_directory_is_of_the_cluster_that_made_it(tmp_path: Path) -> None:
    """One of version 0.1, which names no cluster, is of the first that opens it."""
    open_log(tmp_path / "7").close()
    ours = IDENTITY._replace(cluster_id="ours")
    ManagedLedger.open(tmp_path / "7", ours, settings(), 0).close()
    for other in (IDENTITY._replace(cluster_id="other"), IDENTITY):
        with pytest.raises(NotOurDataDirectory, match="of cluster ours"):
            ManagedLedger.open(tmp_path / "7", other, settings(), 0)
    assert [found.cluster_id for found in read_identities(tmp_path)] == ["ours"]
    ManagedLedger.open(tmp_path / "7", ours, settings(), 0).close()


def test_identities_can_be_read_while_somebody_owns_them(tmp_path: Path) -> None:
    log = open_log(tmp_path / "7")
    topic = "persistent://public/default/many"
    ManagedLedger.open(tmp_path / "8", TopicIdentity(8, f"{topic}-partition-3", 3), settings(), 0)
    (tmp_path / "9").mkdir()
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "manifest-1").write_bytes(b"nonsense")
    assert [each[:5] for each in read_identities(tmp_path)] == [
        (IDENTITY.topic, 7, IDENTITY.topic, -1, ""),
        (f"{topic}-partition-3", 8, topic, 3, ""),
    ]
    assert [found.number for found in read_identities(tmp_path, {8, 11})] == [8]
    assert read_identities(tmp_path / "none") == []
    log.check_owner()


@pytest.mark.parametrize("seed", range(12))
def test_random_crashes_lose_nothing_confirmed_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    interval = rng.choice([3, 10, 1000])
    config = settings(
        managed_ledger_max_entries_per_ledger=40,
        segment_size_bytes=64 * 1024,
        index_checkpoint_entries=interval,
    )
    log = open_log(tmp_path, config=config)
    next_seq = {1: 0, 2: 0, 3: 0}
    stored: list[tuple[Position, tuple[int, int]]] = []
    for _ in range(150):
        step = rng.random()
        if step < 0.1:
            leave(log, rng.random() < 0.5)
            log = open_log(tmp_path, config=config)
            for incarnation, seq in next_seq.items():
                assert log.incarnations.classify(incarnation, seq, 1) == New()
            for position, (incarnation, seq) in stored[-interval:]:
                assert log.incarnations.classify(incarnation, seq, 1) == Repeat(position)
            for _, (incarnation, seq) in stored:
                assert isinstance(log.incarnations.classify(incarnation, seq, 1), Repeat)
            continue
        blocks = []
        for _ in range(rng.randint(1, 4)):
            incarnation = rng.choice([1, 2, 3])
            seq = next_seq[incarnation]
            next_seq[incarnation] += 1
            blocks.append(block(seq, incarnation=incarnation, size=rng.choice([10, 5000])))
        result = append_blocks(log, blocks)
        stored += zip(result.positions, [(h.incarnation, h.entry_seq) for h, _ in blocks], strict=True)
    assert [position for position, _ in stored] == sorted(position for position, _ in stored)
    assert [position for position, _ in entries(log)] == [position for position, _ in stored]
    assert [seq for _, seq in entries(log)] == [seq for _, (_, seq) in stored]
