"""A node's data directory, as the journal sees it: partitions by their numbers, below `p`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData, JournalDamaged, PulsarException
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.journal.objects import ledger_of
from pulsar_ray.journal.ownership import first_epoch, first_ledger, first_term
from pulsar_ray.kernel_calls import exchange
from pulsar_ray.ledger.directory_owner import create_epoch_file
from pulsar_ray.ledger.disk import SYSTEM_DISK, write_whole
from pulsar_ray.ledger.offloaded import Offloaded, Piece, note_of, offloaded_names, read_note, write_note
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.ledger.record_log import drop_unfinished, newest_log
from pulsar_ray.ledger.recovery import sound_end
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX, SegmentInfo, segment_name
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_store import LOG_NAME as CURSOR
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST, read_manifest
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted

logger = logging.getLogger(__name__)

TERM_FILE = "term"
FORMER_TERM_FILE = "former-term"
LIFE_FILE = "journal.json"
_STAGED = ".staged"
_COMING_BACK = ".back"
_GOING = ".going"
_SPARE_LEDGERS = 1000
"""More than an owner begins before anything of it is shipped."""


class Term(NamedTuple):
    """A directory knows this of its partition in the journal."""

    term: int
    is_dropped: bool = False
    first_ledger: int = 0
    """The owner's ledgers have no lower counter: a former owner may have used those."""
    is_left_out: bool = False
    """It is not shipped now; if it is again, in no earlier term."""
    is_left: bool = False
    """The partition left in this term: a later one alone is served here again."""


def read_term(directory: Path) -> Term | None:
    """Return the term of a partition, None if it never was in the journal."""
    try:
        term, is_dropped, first, *rest = json.loads((directory / TERM_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        remedy = "a store whose journal has it writes it anew as it begins; else remove the file"
        raise CorruptData(
            str(directory / TERM_FILE), 0, f"not a partition's term ({error}): {remedy}"
        ) from None
    return Term(int(term), bool(is_dropped), int(first), *map(bool, rest))


def write_term(directory: Path, term: Term) -> None:
    """Make it the directory's term, durably. Raises OSError."""
    write_whole(SYSTEM_DISK, directory / TERM_FILE, json.dumps(list(term)).encode())


def write_former_term(directory: Path, term: int) -> None:
    """Note durably in which term a store before this one had the partition. Raises OSError."""
    write_whole(SYSTEM_DISK, directory / FORMER_TERM_FILE, json.dumps(term).encode())


def read_former_term(directory: Path) -> int:
    """Return the term of a store before this one, 0 without any."""
    try:
        return int(json.loads((directory / FORMER_TERM_FILE).read_bytes()))
    except FileNotFoundError:
        return 0
    except (ValueError, TypeError) as error:
        raise CorruptData(str(directory / FORMER_TERM_FILE), 0, f"not a term ({error})") from None


def raise_life(data_dir: Path, url: str) -> int:
    """Begin a new life of the store in a directory, durably, and return its number.

    The directory's lock is ours. Raises JournalDamaged for a file that nobody can read, OSError.
    """
    path, life = data_dir / LIFE_FILE, 0
    try:
        life = int(json.loads(path.read_bytes())["life"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamaged(f"{path} does not tell the store's life ({error})") from None
    write_whole(SYSTEM_DISK, path, json.dumps({"life": life + 1, "url": url}).encode())
    return life + 1


def noted_url(data_dir: Path) -> str:
    """Return the object store that a store last shipped to.

    It is "" if it never did, or nobody can read that.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((data_dir / LIFE_FILE).read_bytes())["url"])
    return ""


def listed_files(directory: Path) -> dict[str, int]:
    """Return the durable ends of all files that count, as the newest manifest lists them.

    Segments count whose records that has lost, as for recovery. Somebody may be writing: an open segment
    counts up to its last whole frame. Nothing is there for a directory without a manifest. Raises what is
    wrong with the manifest.
    """
    content, found = read_manifest(directory), dict[str, int]()
    if content is None:
        return found
    take_unlisted(content)
    for ledger in content.manifest.ledgers.values():
        for segment in ledger.segments:
            is_open = ledger.is_open and segment is ledger.segments[-1]
            found[segment.name] = _end_of_frames(segment) if is_open else segment.end_offset
    if (form := content.manifest.compacted) is not None:
        for kept, _, _, _, end_offset, _ in form.segments:
            found[segment_name(kept, COMPACTED_INDEX + form.number)] = end_offset
    for number in content.manifest.subscriptions:
        cursor = newest_log(cursor_directory(directory, number), CURSOR)
        if cursor is not None:
            found[cursor.relative_to(directory).as_posix()] = cursor.stat().st_size
    manifest = newest_log(directory, MANIFEST)
    if manifest is not None:
        found[manifest.name] = manifest.stat().st_size
    return found


def closed_segments(directory: Path) -> dict[str, int]:
    """Return the lengths of closed segments, as the newest manifest lists them.

    Raises what is wrong with the manifest.
    """
    content = read_manifest(directory)
    ledgers = [] if content is None else content.manifest.ledgers.values()
    return {
        segment.name: segment.end_offset
        for ledger in ledgers
        for segment in ledger.segments
        if not (ledger.is_open and segment is ledger.segments[-1])
    }


def _end_of_frames(segment: SegmentInfo) -> int:
    try:
        return sound_end(segment)
    except SegmentGone:
        return 0


def remove_partition(directory: Path) -> None:
    """Remove a partition's directory, but for a note that its journal needs.

    Of one that left the journal pieces may be there yet. One that was moved here and never shipped has
    term 0.
    """
    term = read_term(directory)
    if term is None or not term.term:
        _remove_whole(directory)
        return
    write_term(directory, term._replace(is_dropped=True, is_left_out=False))
    for path in directory.iterdir():
        if path.name != TERM_FILE:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _remove_whole(directory: Path) -> None:
    """Remove a directory, of which nobody finds a half wherever this process dies."""
    going = directory.with_name(f"{directory.name}{_GOING}")
    shutil.rmtree(going, ignore_errors=True)
    try:
        directory.rename(going)
    except FileNotFoundError:
        return
    except OSError:
        going = directory
    with contextlib.suppress(OSError):
        _sync(directory.parent)
    shutil.rmtree(going, ignore_errors=True)


def remove_unfinished(root: Path) -> None:
    """Remove the rests of partitions that former processes were restoring or removing."""
    for suffix in (_STAGED, _GOING):
        for rest in root.glob(f"*{suffix}"):
            shutil.rmtree(rest, ignore_errors=True)


class StoreFiles:
    """Implements `Directory` over the partitions of one store that are in its journal.

    It removes the unfinished restores of former lives.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        remove_unfinished(root)
        self._terms: dict[str, Term] = {}
        self._damaged: set[str] = set()
        """Partitions whose term nobody can read."""
        for number in partition_numbers(root):
            try:
                term = read_term(root / str(number))
            except CorruptData as error:
                self._damaged.add(str(number))
                logger.error("a partition is not served before its term is mended: %s", error)
                continue
            if term is not None and not term.is_left_out:
                self._terms[str(number)] = term

    def path(self, partition: str) -> Path:
        """Return a partition's directory."""
        return self._root / partition

    def enter(self, partition: str, files: Iterable[str]) -> None:
        """Note durably that a partition with these files is in the journal."""
        if partition not in self._terms:
            # In the term of a former store it would be taken for a copy of that one's.
            former = read_former_term(self.path(partition))
            own = read_term(self.path(partition)) or Term(0)
            term = max(first_term(last_counter(files)), former + 1, own.term)
            self._set(partition, Term(term, first_ledger=own.first_ledger))

    def mend_term(self, partition: str, term: int, is_left: bool) -> None:
        if partition in self._damaged:
            names = [path.name for path in self.path(partition).iterdir()]
            first = max(first_ledger(term), last_counter(names) + _SPARE_LEDGERS)
            self._set(partition, Term(term, first_ledger=first, is_left=is_left))
            self._damaged.discard(partition)
            logger.warning("the term of partition %s is %d again, as its journal has it", partition, term)

    def leave_out(self, partition: str) -> None:
        """Note durably that a partition is not in the journal any more."""
        term = self._terms.get(partition)
        if term is not None and not term.is_dropped:
            write_term(self.path(partition), term._replace(is_left_out=True))
            del self._terms[partition]

    def mark_dropped(self, partition: str) -> bool:
        """Note durably that a partition is no more, and remove its files.

        Returns False if it never was in the journal, and nothing of it is left.
        """
        remove_partition(self.path(partition))
        if (term := read_term(self.path(partition))) is None:
            return False
        self._terms[partition] = term
        return True

    def is_dropped(self, partition: str) -> bool:
        """Return whether the partition is no more, and only its note is left."""
        return partition in self._terms and self._terms[partition].is_dropped

    def note_left(self, partition: str) -> None:
        """Note durably that a partition left in its present term."""
        self._set(partition, self._terms[partition]._replace(is_left=True))

    def _set(self, partition: str, term: Term) -> None:
        write_term(self.path(partition), term)
        self._terms[partition] = term

    # ---- Directory
    def partitions(self) -> list[str]:
        return list(self._terms)

    def term(self, partition: str) -> int:
        return self._terms[partition].term

    def left(self, partition: str) -> set[int]:
        term = self._terms[partition]
        return {term.term} if term.is_left else set()

    def lengths(self, partition: str) -> dict[str, int]:
        if self.is_dropped(partition):
            return {}
        return listed_files(self.path(partition))

    def read(self, partition: str, file: str, start: int, end: int) -> bytes:
        try:
            fd = os.open(self.path(partition) / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(fd, end - start, start)
        finally:
            os.close(fd)

    def recover(self, partition: str) -> None:
        """Sync what a dead process may have written and not synced.

        The partition's next owner recovers it, and never goes on in a file of a former one.
        """
        directory = self.path(partition)
        with contextlib.suppress(PulsarException):
            for file in self.lengths(partition):
                with contextlib.suppress(FileNotFoundError):
                    _sync(directory / file)

    def has(self, partition: str, file: str) -> bool:
        path = self.path(partition) / file
        return path.exists() or note_of(path).exists()

    def is_superseded(self, partition: str, file: str) -> bool:
        if self.is_dropped(partition):
            return True
        try:
            listed = self.lengths(partition)
        except PulsarException:
            return False
        if file in listed or not listed:
            return False
        name = Path(file).name
        if ledger_of(file) is not None:
            return True
        # Of a log of records a later file has to be here, unless its subscription is no more.
        later = [other for other in listed if Path(other).parent == Path(file).parent]
        logs = [_number(Path(other).name) for other in later if Path(other).name[:6] == name[:6]]
        return (not logs and name.startswith(CURSOR)) or any(number > _number(name) for number in logs)

    def discard_staged(self, partition: str) -> None:
        shutil.rmtree(self._staged(partition), ignore_errors=True)

    def stage(self, partition: str, file: str, data: Buffer) -> None:
        path = self._staged(partition) / file
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        with path.open("ab") as out:
            out.write(data)

    def install(self, partition: str, term: int) -> None:
        """Give the staged files their place, wholly and synced, under `term`."""
        staged, target = self._staged(partition), self.path(partition)
        staged.mkdir(0o700, parents=True, exist_ok=True)
        for folder in [staged, *(path for path in staged.rglob("*") if path.is_dir())]:
            for log in (MANIFEST, CURSOR):
                drop_unfinished(folder, log)
            if any(path.is_file() for path in folder.iterdir()):
                create_epoch_file(folder, folder / "epoch", SYSTEM_DISK, first_epoch(term))
        files = [path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file()]
        files += offloaded_names(staged)
        first = max(first_ledger(term), last_counter(files) + _SPARE_LEDGERS)
        write_term(staged, Term(term, first_ledger=first))
        for path in staged.rglob("*"):
            _sync(path)
        _sync(staged)
        try:
            # Without its partition for a moment, a store that dies there would be taken for a copy.
            exchange(staged, target)
        except OSError:
            shutil.rmtree(target, ignore_errors=True)
            staged.rename(target)
        _sync(self._root)
        shutil.rmtree(staged, ignore_errors=True)
        self._terms[partition] = Term(term, first_ledger=first)

    def remove(self, partition: str, term: int) -> None:
        if partition in self._terms and self._terms[partition].term == term:
            del self._terms[partition]
            _remove_whole(self.path(partition))

    def unlink_files(self, partition: str, files: tuple[str, ...]) -> None:
        for file in files:
            with contextlib.suppress(OSError):
                for other in (note_of(self.path(partition) / file).name, file + _COMING_BACK):
                    (self.path(partition) / other).unlink(missing_ok=True)
                (self.path(partition) / file).unlink(missing_ok=True)

    def offloaded(self, partition: str, file: str) -> list[tuple[int, int, int]] | None:
        path = self.path(partition) / file
        try:
            found = None if path.exists() else read_note(path)
        except CorruptData as error:
            logger.error("a segment is only in the object store, and nobody reads which pieces: %s", error)
            return []
        return None if found is None else [(p.start, p.end, p.checksum) for p in found.pieces]

    def offload(self, partition: str, file: str, pieces: list[tuple[int, int, int]]) -> bool:
        path = self.path(partition) / file
        found = _note(pieces)
        if not found.is_whole or not path.exists() or self.closed(partition).get(file) != found.length:
            return False
        write_note(path, found)
        path.unlink()
        return True

    def closed(self, partition: str, is_staged: bool = False) -> dict[str, int]:
        with contextlib.suppress(PulsarException, OSError):
            return closed_segments(self._staged(partition) if is_staged else self.path(partition))
        return {}

    def stage_note(self, partition: str, file: str, pieces: list[tuple[int, int, int]]) -> None:
        path = self._staged(partition) / file
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        write_note(path, _note(pieces))

    def fetch_back(self, partition: str, file: str, start: int, data: Buffer) -> None:
        flags = os.O_WRONLY | os.O_CREAT | (0 if start else os.O_TRUNC)
        fd = SYSTEM_DISK.open(self.path(partition) / f"{file}{_COMING_BACK}", flags)
        try:
            view, at = memoryview(data), start
            while view:
                count = SYSTEM_DISK.pwrite(fd, view, at)
                view, at = view[count:], at + count
            SYSTEM_DISK.fdatasync(fd)
        finally:
            SYSTEM_DISK.close(fd)

    def end_fetching(self, partition: str, file: str) -> None:
        path = self.path(partition) / file
        SYSTEM_DISK.rename(path.with_name(file + _COMING_BACK), path)
        SYSTEM_DISK.fsync_dir(path.parent)
        note_of(path).unlink(missing_ok=True)

    def has_offloaded(self, partition: str) -> bool:
        """Return whether some of a partition is only in the object store."""
        return any(
            not (self.path(partition) / name).exists() for name in offloaded_names(self.path(partition))
        )

    def _staged(self, partition: str) -> Path:
        return self._root / f"{partition}{_STAGED}"


def _note(pieces: list[tuple[int, int, int]]) -> Offloaded:
    return Offloaded(pieces[-1][1] if pieces else 0, tuple(Piece(*piece) for piece in pieces))


def last_counter(files: Iterable[str]) -> int:
    """Return the highest counter among the ledgers of these files, 0 without any."""
    counter_mask = (1 << LEDGER_COUNTER_BITS) - 1
    ledgers = (ledger_of(file) for file in files)
    return max((ledger & counter_mask for ledger in ledgers if ledger is not None), default=0)


def _number(name: str) -> list[int]:
    return [int(part) for part in name.partition("-")[2].split(".")]


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
