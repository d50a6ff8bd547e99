"""Whether a ledger was deleted is read from the manifest, without its owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.managed_ledger.log.trimmed_ledgers import NONE_TRIMMED, last_trimmed_ledger
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import IDENTITY, abandon, append, change, open_log

FIRST_LEDGER = IDENTITY.number << 31


def ledgers(path: Path, count: int, disk: FaultyDisk | None = None) -> None:
    for _ in range(count):
        log = open_log(path, disk=disk or FaultyDisk())
        append(log, log.epoch)
        abandon(log)


def test_it_is_known_before_the_files_are_gone(tmp_path: Path) -> None:
    assert last_trimmed_ledger(tmp_path / "missing") == NONE_TRIMMED
    ledgers(tmp_path, 3)
    assert last_trimmed_ledger(tmp_path) == NONE_TRIMMED
    disk = FaultyDisk()
    log = open_log(tmp_path, disk=disk)
    seen: list[tuple[int, int]] = []

    def look(call: str) -> None:
        if call == "unlink":
            seen.append((last_trimmed_ledger(tmp_path), len(list(tmp_path.glob("*.seg")))))

    disk.before = look
    assert change(log, log.changes.trim(10**9)) == [FIRST_LEDGER, FIRST_LEDGER + 1, FIRST_LEDGER + 2]
    assert seen == [(FIRST_LEDGER + 2, left) for left in (3, 2, 1)]


def test_it_survives_new_owners(tmp_path: Path) -> None:
    ledgers(tmp_path, 2)
    log = open_log(tmp_path)
    change(log, log.changes.trim(10**9))
    abandon(log)
    ledgers(tmp_path, 2)
    assert last_trimmed_ledger(tmp_path) == FIRST_LEDGER + 1


def test_a_damaged_manifest_excuses_nothing(tmp_path: Path) -> None:
    ledgers(tmp_path, 1)
    log = open_log(tmp_path)
    change(log, log.changes.trim(10**9))
    (manifest,) = tmp_path.glob("manifest-*")
    content = manifest.read_bytes()
    manifest.write_bytes(content[:20] + b"?" + content[21:])
    assert last_trimmed_ledger(tmp_path) == NONE_TRIMMED


def test_a_manifest_that_is_replaced_meanwhile_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers(tmp_path, 1)
    log = open_log(tmp_path)
    change(log, log.changes.trim(10**9))
    read = Path.read_bytes
    tries: list[Path] = []

    def gone_first(path: Path) -> bytes:
        tries.append(path)
        if len(tries) == 1:
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", gone_first)
    assert last_trimmed_ledger(tmp_path) == FIRST_LEDGER
    assert len(tries) == 2
