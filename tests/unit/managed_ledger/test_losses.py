"""A power cut, a flipped bit, a file that was cut: nothing that was confirmed is lost without a word.

These are the three that the Jepsen analysis of NATS JetStream 2.12 found.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.recovery import SegmentScan
from pulsar_ray.maintenance.damage import Damage, Kind
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore, read_cursor
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.power_cut import PowerCut, PowerCutDisk
from tests.stored_blocks import append, change, open_log, settings
from tests.stored_directory import MESSAGES, StoredTopic, make_directory

CUT = settings(
    managed_ledger_max_entries_per_ledger=7, segment_size_bytes=64 * 1024, index_checkpoint_entries=4
)


class Confirmed:
    """The receipts of one run: what was stored where, and what was acknowledged with a receipt."""

    def __init__(self) -> None:
        self.entries: dict[Position, int] = {}
        self.acknowledged = EARLIEST

    def missing_in(self, directory: Path) -> list[Position]:
        """Positions with a receipt that are not found with their message after opening a directory."""
        if not self.entries:
            return []
        log = open_log(directory, config=CUT, must_exist=True)
        assert log.corruptions == [], "a power cut is no damage"
        found = readable(log)
        log.close()
        return [place for place, seq in self.entries.items() if found.get(place) != seq]


def readable(log: ManagedLedger) -> dict[Position, int]:
    """The entry_seq of each entry whose checksums are right, by position."""
    found = {}
    for part in log.segments():
        scan = SegmentScan(
            part.path, part.ledger_id, 4096, part.first_entry_id, part.last_entry_id, part.end_offset
        )
        for frame in scan.frames():
            entry = frame.header.first_entry_id
            for block in frame.blocks:
                for row in range(block.entries):
                    found[Position(part.ledger_id, entry + row)] = block.entry_seq + row
                entry += block.entries
    return found


def run_until_cut(disk: PowerCutDisk, directory: Path, rng: random.Random) -> Confirmed:
    """Append, roll over, acknowledge and restart until the power goes."""
    confirmed = Confirmed()
    seq = 0
    try:
        for _ in range(3):
            log = open_log(directory, config=CUT)
            if log.changes.find_subscription("s", True) is None:
                change(log, log.changes.register("s", True, "earliest"))
            cursor = CursorStore.create(cursor_directory(directory, 1), CursorSubscription("s"), EARLIEST)
            for _ in range(rng.randint(5, 25)):
                (position,) = append(log, seq, size=rng.choice([50, 9000])).positions
                confirmed.entries[position] = seq
                seq += 1
                if rng.random() < 0.3:
                    cursor.cursor.ledgers.extend(*position)
                    cursor.cursor.acknowledge_up_to(position)
                    flush = cursor.begin_flush()
                    assert flush is not None
                    flush.run()
                    cursor.finish_flush(flush)
                    confirmed.acknowledged = position
            cursor.close()
            log.close()
    except PowerCut:
        pass
    return confirmed


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_at_any_call_loses_nothing_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    disk = PowerCutDisk(tmp_path)
    disk.calls_left = rng.randint(10, 250)
    with monkeypatch.context() as patch:
        disk.install(patch)
        confirmed = run_until_cut(disk, tmp_path / "log", rng)
    for which, survivors in enumerate((None, rng, rng)):
        left = disk.left(tmp_path / f"left-{which}", survivors) / "log"
        assert confirmed.missing_in(left) == []
        if confirmed.acknowledged != EARLIEST:
            cursor = read_cursor(cursor_directory(left, 1))
            assert cursor is not None
            assert cursor.mark_delete >= confirmed.acknowledged


def test_the_same_check_finds_what_was_never_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = PowerCutDisk(tmp_path)
    disk.ignored_suffix = ".seg"
    disk.calls_left = 150
    with monkeypatch.context() as patch:
        disk.install(patch)
        confirmed = run_until_cut(disk, tmp_path / "log", random.Random(1))
    left = disk.left(tmp_path / "left") / "log"
    log = open_log(left, config=CUT)
    assert set(confirmed.entries) - set(readable(log))


# --- damage to files that were whole


def flipped(content: bytes, rng: random.Random) -> bytes:
    """One bit is another one."""
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def cut_off(content: bytes, rng: random.Random) -> bytes:
    """Everything behind some byte is gone."""
    return content[: rng.randrange(len(content))]


def names(damages: list[Damage], topic: StoredTopic, entry_id: int) -> bool:
    """Whether an entry, or all of its topic, is said to be damaged."""
    return any(
        (damage.kind in (Kind.MANIFEST, Kind.EPOCH) and damage.path.startswith(str(topic.directory)))
        or (damage.topic == topic.name and damage.first_entry_id <= entry_id <= damage.last_entry_id)
        for damage in damages
    )


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("harm", [flipped, cut_off])
@pytest.mark.parametrize("seed", range(2))
def test_damage_anywhere_is_named_and_its_neighbours_stay_readable(
    tmp_path: Path, harm: Callable[[bytes, random.Random], bytes], is_closed: bool, seed: int
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    for turn in range(8):
        place = tmp_path / str(turn)
        orders, bills = make_directory(place, is_closed=is_closed)
        log_files = [path for path in sorted(orders.directory.iterdir()) if path.name[0] in "m0123456789e"]
        file = rng.choice([*log_files, orders.segment, orders.segment])
        content = file.read_bytes()
        used = content.rstrip(b"\0") if file == orders.segment else content
        harmed = harm(used, rng)
        print(f"turn {turn}: {file}, {len(content)} bytes")
        file.write_bytes(harmed)
        damages = verify_directory(place).damages
        assert all(damage.topic in ("", orders.name) for damage in damages)
        expected = {Position(orders.ledger_id, entry): entry for entry in range(MESSAGES)}
        try:
            log = orders.open()
        except PulsarException:
            assert damages, "a log that is refused is damaged"
            found = {}
        else:
            found = readable(log)
            log.close()
        missing = [entry.entry_id for entry in expected if entry not in found]
        assert all(expected[entry] == seq for entry, seq in found.items()), "nothing is misread"
        # Of a log that was not closed nothing proves the last frame but an acknowledgment.
        provable = MESSAGES if is_closed else MESSAGES - 3
        silent = [entry for entry in missing if entry < provable and not names(damages, orders, entry)]
        assert silent == []
        if file == orders.segment and harm is flipped:
            assert len(missing) <= 3, "one bit costs one frame"
        other = bills.open()
        assert len(readable(other)) == MESSAGES
        other.close()
        shutil.rmtree(place)
