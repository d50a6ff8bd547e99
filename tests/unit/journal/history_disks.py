"""A store's directory in a history: manifests, cursors and ledgers of whole records."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from pulsar_ray.format.checksum import Buffer
from pulsar_ray.journal.objects import ledger_of, piece_key, unpack_piece
from pulsar_ray.journal.ownership import first_ledger

if TYPE_CHECKING:
    from tests.unit.journal.histories import World

At = tuple[int, int]
Pieces = list[tuple[int, int, int]]
OPEN, END, FRONT = range(3)
MANIFEST, CURSOR, LOG = struct.Struct(">III"), struct.Struct(">II"), struct.Struct(">Q")
HEADER = LOG.pack(0)
"""A ledger's file begins with it, before the manifest names the ledger."""


def end_of(entries: int) -> int:
    """Return where a ledger's file ends that has so many entries."""
    return (1 + entries) * LOG.size


def whole(file: str, data: Buffer) -> int:
    """Return how much of a file is whole records."""
    size = {"manifest": MANIFEST.size, "cursor": CURSOR.size}.get(file, LOG.size)
    return len(data) // size * size


class Copy:
    """A partition in a directory: a manifest, a cursor's log and the ledgers, each of whole records."""

    def __init__(self, term: int, files: dict[str, bytearray] | None = None) -> None:
        self.term, self.is_left, self.is_dropped = term, False, False
        self.files = files if files is not None else {}
        self.files.setdefault("manifest", bytearray())
        self.files.setdefault("cursor", bytearray())
        self.synced: dict[str, int] = {}
        self.away: dict[str, Pieces] = {}
        """Files that are only in the object store."""
        self.opened = 0
        """Which opening of a partition wrote here last."""
        self.last_ledger = 0
        """The highest that was begun here: names never come again."""
        self.read_away: Callable[[str, Pieces], bytes] = lambda _file, _pieces: b""

    def clone(self) -> Copy:
        copy = Copy(self.term, {f: bytearray(b) for f, b in self.files.items()})
        copy.away, copy.read_away = dict(self.away), self.read_away
        copy.synced, copy.is_left = dict(self.synced), self.is_left
        copy.opened, copy.last_ledger = self.opened, self.last_ledger
        copy.is_dropped = self.is_dropped
        return copy

    def told(self, kind: int) -> list[tuple[int, int]]:
        return [(a, b) for k, a, b in MANIFEST.iter_unpack(self.files["manifest"]) if k == kind]

    def front(self) -> int:
        return max([0] + [a for a, _ in self.told(FRONT)])

    def ledgers(self) -> list[int]:
        return [a for a, _ in self.told(OPEN) if a >= self.front()]

    def cursor(self) -> At:
        stored = self.files["cursor"]
        if not stored:
            return (0, -1)
        ledger, entry = CURSOR.unpack(stored[-CURSOR.size :])
        return ledger, entry - 1

    def entries(self, ledger: int) -> list[int]:
        file = f"{ledger}-0"
        stored: Buffer | None = self.files.get(file)
        if stored is None and (pieces := self.away.get(file)) is not None:
            stored = self.read_away(file, pieces)
        data = bytes(stored or b"")[LOG.size :]
        return [c for (c,) in LOG.iter_unpack(data[: whole(file, data)])]

    def log(self) -> list[tuple[At, int]]:
        ends = dict(self.told(END))
        return [((i, k), c) for i in self.ledgers() for k, c in enumerate(self.entries(i)[: ends.get(i)])]

    def lacks_pieces(self) -> bool:
        """Whether pieces of files that are only in the object store are gone."""
        away = {file: self.read_away(file, pieces) for file, pieces in self.away.items()}
        return any(len(data) < self.closed().get(file, 0) for file, data in away.items())

    def recover(self) -> list[str]:
        """Close what a former owner left open; return files that no record names."""
        for file, data in self.files.items():  # an object may have ended within a record
            del data[whole(file, data) :]
        ended = dict(self.told(END))
        for i in self.ledgers():
            if i not in ended:
                self.files["manifest"] += MANIFEST.pack(END, i, len(self.entries(i)))
        self.sync()
        return [f for f in self.files if (ledger := ledger_of(f)) is not None and ledger not in self.named()]

    def named(self) -> set[int]:
        """Return all ledgers that the manifest ever named."""
        return {a for a, _ in self.told(OPEN)}

    def listed(self) -> dict[str, int]:
        """Return the lengths of the files that the manifest lists, and of itself and the cursor."""
        found = {f: pieces[-1][1] for f, pieces in self.away.items()}
        found |= {f: whole(f, b) for f, b in self.files.items()}
        ledgers = {f"{i}-0" for i in self.ledgers()}
        return {f: length for f, length in found.items() if ledger_of(f) is None or f in ledgers}

    def sync(self) -> None:
        self.synced = {f: len(b) for f, b in self.files.items()}

    def before(self, front: int) -> list[str]:
        """Return the ledgers' files here that are before a front."""
        here = [*self.files, *self.away]
        return [file for file in here if (i := ledger_of(file)) is not None and i < front]

    def closed(self) -> dict[str, int]:
        return {f"{a}-0": end_of(b) for a, b in self.told(END) if a >= self.front()}


class Disk:
    """A store's directory, as the journal sees it."""

    def __init__(self, world: World) -> None:
        self.world, self.store, self.life = world, f"s{world.name():06d}", 0
        self.copies: dict[str, Copy] = {}
        self.staged: dict[str, dict[str, bytearray]] = {}
        self.staged_away: dict[str, dict[str, Pieces]] = {}
        self.coming_back: dict[tuple[str, str], bytearray] = {}
        self.failing_until = 0.0
        self.is_of_backup = False

    def backup(self) -> Disk:
        disk = Disk(self.world)
        disk.store, disk.life, disk.is_of_backup = self.store, self.life, True
        disk.copies = {p: c.clone() for p, c in self.copies.items()}
        return disk

    def power_cut(self) -> None:
        rng = self.world.rng
        for copy in self.copies.values():
            for file, data in copy.files.items():
                size = {"manifest": MANIFEST.size, "cursor": CURSOR.size}.get(file, LOG.size)
                kept, most = min(copy.synced.get(file, 0), len(data)) // size, len(data) // size
                del data[rng.choice((kept, most, rng.randint(kept, most))) * size :]
            records = list(MANIFEST.iter_unpack(bytes(copy.files["manifest"])))
            for n, (k, a, b) in enumerate(records):  # an end is written when the entries are durable
                if k == END and a >= copy.front() and len(copy.entries(a)) < b:
                    del copy.files["manifest"][n * MANIFEST.size :]
                    break

    def fail_at_times(self) -> None:
        """Raise OSError while nothing is read from this disk."""
        if self.world.now < self.failing_until:
            raise OSError("the disk does not give it")

    # ---- Directory
    def partitions(self) -> list[str]:
        return list(self.copies)

    def term(self, partition: str) -> int:
        return self.copies[partition].term

    def left(self, partition: str) -> set[int]:
        copy = self.copies[partition]
        return {copy.term} if copy.is_left else set()

    def lengths(self, partition: str) -> dict[str, int]:
        self.fail_at_times()
        return {} if self.is_dropped(partition) else self.copies[partition].listed()

    def read(self, partition: str, file: str, start: int, end: int) -> bytes:
        self.fail_at_times()
        copy = self.copies.get(partition)
        return bytes(copy.files.get(file, b"")[start:end]) if copy else b""

    def recover(self, partition: str) -> None:
        self.fail_at_times()
        self.copies[partition].sync()

    def enter(self, partition: str, files: Iterable[str]) -> None:
        """It is in the journal since it was installed."""
        if partition not in self.copies:
            raise FileNotFoundError(partition)

    def mend_term(self, partition: str, term: int, is_left: bool) -> None:
        """No term is damaged in a history."""

    def leave_out(self, partition: str) -> None:
        raise AssertionError("nothing leaves the journal in a history")

    def is_dropped(self, partition: str) -> bool:
        return partition in self.copies and self.copies[partition].is_dropped

    def mark_dropped(self, partition: str) -> None:
        """Note durably that a partition is no more, and remove its files."""
        copy = self.copies[partition]
        copy.is_dropped = True
        copy.files, copy.synced = {"manifest": bytearray(), "cursor": bytearray()}, {}
        copy.away.clear()

    def has(self, partition: str, file: str) -> bool:
        copy = self.copies[partition]
        return file in copy.files or file in copy.away

    def is_superseded(self, partition: str, file: str) -> bool:
        if self.is_dropped(partition):
            return True
        listed = self.lengths(partition)
        return ledger_of(file) is not None and file not in listed and bool(listed)

    def unlink_files(self, partition: str, files: tuple[str, ...]) -> None:
        if copy := self.copies.get(partition):
            ledgers = {i for file in files if (i := ledger_of(file)) is not None}
            front = 1 + max(ledgers & copy.named(), default=-1)
            self.world.truths[partition].deleted.append(((copy.term, copy.opened), front))
            for file in files:
                copy.files.pop(file, None)
                copy.away.pop(file, None)

    def offloaded(self, partition: str, file: str) -> Pieces | None:
        copy = self.copies.get(partition)
        return None if copy is None or file in copy.files else copy.away.get(file)

    def offload(self, partition: str, file: str, pieces: Pieces) -> bool:
        copy = self.copies.get(partition)
        if not pieces or copy is None or file not in copy.files or copy.closed().get(file) != pieces[-1][1]:
            return False
        self.world.counts["offloaded"] += 1
        copy.away[file] = pieces
        del copy.files[file]
        return True

    def closed(self, partition: str, is_staged: bool = False) -> dict[str, int]:
        if not is_staged:
            return self.copies[partition].closed() if partition in self.copies else {}
        manifest = bytes(self.staged[partition].get("manifest", b""))
        return Copy(0, {"manifest": bytearray(manifest[: len(manifest) // 12 * 12])}).closed()

    def stage_note(self, partition: str, file: str, pieces: Pieces) -> None:
        self.world.counts["by reference"] += 1
        self.staged_away.setdefault(partition, {})[file] = pieces

    def fetch_back(self, partition: str, file: str, start: int, data: Buffer) -> None:
        coming = self.coming_back.setdefault((partition, file), bytearray())
        del coming[len(coming) if start else 0 :]
        coming.extend(bytes(max(0, start - len(coming))))
        coming[start : start + len(data)] = data

    def end_fetching(self, partition: str, file: str) -> None:
        self.world.counts["fetched back"] += 1
        copy = self.copies[partition]
        copy.files[file] = self.coming_back.pop((partition, file))
        copy.synced[file] = len(copy.files[file])
        del copy.away[file]

    def read_away(self, partition: str, file: str, pieces: Pieces) -> bytes:
        stored = {(a, b): self.world.objects.get(piece_key(partition, file, a, b)) for a, b, _ in pieces}
        return b"".join(unpack_piece(file, data) for data in stored.values() if data is not None)

    def discard_staged(self, partition: str) -> None:
        self.staged.pop(partition, None)
        self.staged_away.pop(partition, None)

    def stage(self, partition: str, file: str, data: Buffer) -> None:
        self.staged.setdefault(partition, {}).setdefault(file, bytearray()).extend(data)

    def install(self, partition: str, term: int) -> None:
        copy = Copy(term, self.staged.pop(partition, {}))
        copy.away = self.staged_away.pop(partition, {})
        copy.read_away = partial(self.read_away, partition)
        for file in copy.recover():
            del copy.files[file]
        copy.last_ledger = max([first_ledger(term), *copy.named()])
        self.copies[partition] = copy
        self.coming_back = {at: data for at, data in self.coming_back.items() if at[0] != partition}

    def note_left(self, partition: str) -> None:
        self.copies[partition].is_left = True

    def remove(self, partition: str, term: int) -> None:
        if partition in self.copies and self.copies[partition].term == term:
            del self.copies[partition]
