"""The files of partitions that move from one store's directory to another's (ADR 0141).

A log's files are only appended to and their names never come again (ADR 0134), so what was copied while the
source served is final. Every chunk travels behind its checksum. The copies lie beside the partitions,
under the move's id, until it is whole; then it has its place with a note that it is *arriving*: nothing
opens it before the catalog says that it is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import ChecksumError, CorruptData, NotAllowedError, WrongNode
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.store_files import (
    TERM_FILE,
    Term,
    last_counter,
    listed_files,
    read_term,
    write_term,
)
from pulsar_ray.ledger.directory_owner import DirectoryOwner, create_epoch_file, read_epoch_slots
from pulsar_ray.ledger.disk import SYSTEM_DISK, persistent
from pulsar_ray.ledger.offloaded import note_of
from pulsar_ray.ledger.segment_file import parse_segment_name
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory, subscription_numbers
from pulsar_ray.managed_ledger.cursor.cursor_store import LOG_NAME as CURSOR
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST
from pulsar_ray.managed_ledger.log.move_note import (
    ARRIVING,
    DEPARTING,
    MOVE_NOTE,
    MoveNote,
    read_move_note,
    write_move_note,
)

CHUNK_BYTES = 4 << 20
OVERLAP_BYTES = 64 << 10
"""So much of what was copied before is compared with the source again."""
MOST_NOTE_BYTES = 1 << 20
LISTINGS = 5
_EPOCH = "epoch"
_STAGED = ".moving-"
_OWN_FILES = ("owner.lock", TERM_FILE, MOVE_NOTE)


class FinalFiles(NamedTuple):
    """The files at a source that nobody writes any more."""

    ends: dict[str, int]
    """How far each file of the log and of the cursors counts."""
    notes: dict[str, bytes]
    """The small files beside them."""
    first_ledger: int
    """The next owner numbers its ledgers from here on."""
    hops: int
    """How often the partition had moved before."""
    epoch: int
    is_shipped: bool = False
    """Whether it has left the source's journal, as which the target takes it."""


class MovedFiles:
    """The partitions of one store, below `root`. Methods block; OSErrors are BrokerPersistenceErrors."""

    def __init__(self, root: Path) -> None:
        self._root = root

    # --- at the source ----------------------------------------------------------------------------

    def listed(self, number: int) -> dict[str, int]:
        """Return how far each file is whole by now, while its owner may go on."""
        directory = self._root / str(number)
        for _ in range(LISTINGS):
            # The owner may just have replaced a file.
            with contextlib.suppress(FileNotFoundError):
                return _to_copy(directory) if directory.is_dir() else {}
        with persistent(directory):
            return _to_copy(directory)

    def is_shipped(self, number: int) -> bool:
        """Whether a partition is in the journal of an object store."""
        term = read_term(self._root / str(number))
        return term is not None and not term.is_left_out

    def fence(self, number: int, move_id: str) -> FinalFiles | None:
        """End the right of every former owner to confirm anything, and list what there is.

        None if the partition has no directory. Raises as `DirectoryOwner.open`.
        """
        directory = self._root / str(number)
        with persistent(directory):
            if not (directory / _EPOCH).is_file():
                if any(directory.glob(f"{MANIFEST}-*")):
                    raise WrongNode(
                        f"{directory} has lost its epoch file: look at it with `pulsar-ray verify`"
                    )
                return None
            owner = DirectoryOwner.open(directory, create=False)
            owner.close()
            for subscription in subscription_numbers(directory):
                place = cursor_directory(directory, subscription)
                if (place / _EPOCH).is_file():
                    DirectoryOwner.open(place, create=False).close()
            hops = read_move_note(directory).hops
            write_move_note(directory, MoveNote(hops, DEPARTING, move_id))
            return FinalFiles(
                _to_copy(directory), _notes(directory), _first_ledger(directory), hops, owner.epoch
            )

    def is_fenced_as(self, number: int, epoch: int) -> bool:
        """Whether nobody opened the partition since it was fenced."""
        with persistent(self._root):
            slots = read_epoch_slots(self._root / str(number) / _EPOCH)
        return max(-1 if slot is None else slot for slot in slots) == epoch

    def read(self, number: int, file: str, start: int, length: int) -> tuple[bytes, int]:
        """Return bytes of a file and their checksum; none of a file that is gone."""
        path = _inside(self._root / str(number), file)
        with persistent(path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return b"", checksum(b"")
            try:
                data = os.pread(fd, min(length, CHUNK_BYTES), start)
            finally:
                os.close(fd)
        return data, checksum(data)

    def clear(self, number: int, move_id: str) -> bool:
        """Delete what has moved away in this very move; False if that is not here."""
        return self._delete(number, DEPARTING, move_id)

    # --- at the target ----------------------------------------------------------------------------

    def begin(self, number: int, move_id: str) -> None:
        """Keep a place for a move. Raises NotAllowedError if the partition has a directory here."""
        place, staged = self._root / str(number), self._staged(number, move_id)
        with persistent(staged):
            self._root.mkdir(0o700, exist_ok=True)
            if place.exists():
                raise NotAllowedError(
                    f"{place} is there already, and is not what a move has left: look at it, and move it "
                    "away if it is not needed"
                )
            staged.mkdir(0o700, exist_ok=True)

    def has(self, number: int, move_id: str, file: str) -> int:
        """Return how much of a file is here."""
        with contextlib.suppress(FileNotFoundError):
            return _inside(self._staged(number, move_id), file).stat().st_size
        return 0

    def put(
        self,
        number: int,
        move_id: str,
        file: str,
        start: int,
        data: bytes,
        total: int,
        *,
        is_synced: bool = False,
    ) -> bool:
        """Write a chunk of a file; False if the file here has other bytes.

        It is emptied then. Synced at once it takes as long as the disk does, and leaves the disk no large
        sync that others wait behind. Raises ChecksumError for bytes that are not those that were sent.
        """
        if checksum(data) != total:
            raise ChecksumError(f"{file} of partition {number} came with other bytes than were sent")
        path = _inside(self._place_of(number, move_id), file)
        with persistent(path):
            path.parent.mkdir(0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                known = os.pread(fd, len(data), start)
                if data[: len(known)] != known:
                    os.ftruncate(fd, 0)
                    return False
                _write_all(fd, data[len(known) :], start + len(known))
                if is_synced:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
        return True

    def cut(self, number: int, move_id: str, ends: Mapping[str, int]) -> None:
        """Delete what is not listed any more, and what lies behind the ends."""
        staged = self._place_of(number, move_id)
        with persistent(staged):
            for path in [each for each in staged.rglob("*") if each.is_file()]:
                end = ends.get(path.relative_to(staged).as_posix())
                if end is None:
                    path.unlink()
                elif path.stat().st_size > end:
                    os.truncate(path, end)

    def sync(self, number: int, move_id: str) -> None:
        """Make durable what was copied, so that less is left for the end."""
        with persistent(self._root):
            for path in self._place_of(number, move_id).rglob("*"):
                _sync(path)

    def install(self, number: int, move_id: str, files: FinalFiles) -> None:
        """Give the files their place, wholly and durably, as arriving. Raises NotAllowedError.

        They are as long as the source has said. It may be repeated.
        """
        staged, place = self._staged(number, move_id), self._root / str(number)
        with persistent(place):
            if place.exists() and read_move_note(place) == MoveNote(files.hops + 1, ARRIVING, move_id):
                return
            staged = self._place_of(number, move_id)
            for file, end in files.ends.items():
                if not end:
                    _inside(staged, file).touch(0o600)
                if (is_long := self.has(number, move_id, file)) != end:
                    raise WrongNode(f"{file} of partition {number} came with {is_long} bytes of {end}")
            for file, content in files.notes.items():
                path = _inside(staged, file)
                path.parent.mkdir(0o700, parents=True, exist_ok=True)
                path.write_bytes(content)
            for folder in [staged, *(path for path in staged.rglob("*") if path.is_dir())]:
                if any(path.is_file() for path in folder.iterdir()):
                    create_epoch_file(folder, folder / _EPOCH, SYSTEM_DISK)
            term = read_term(staged) or Term(0)
            # Of a shipped one the journal here says that it has it, once it does.
            out = Term(term.term, first_ledger=files.first_ledger, is_left_out=True)
            write_term(staged, out)
            write_move_note(staged, MoveNote(files.hops + 1, ARRIVING, move_id))
            for path in staged.rglob("*"):
                _sync(path)
            _sync(staged)
            if place.exists():
                raise NotAllowedError(f"{place} is there already")
            staged.rename(place)
            _sync(self._root)

    def discard(self, number: int, move_id: str) -> None:
        """Delete what this move has brought, and nothing else."""
        shutil.rmtree(self._staged(number, move_id), ignore_errors=True)
        self._delete(number, ARRIVING, move_id)

    # --- afterwards -------------------------------------------------------------------------------

    def noted(self, number: int | None = None) -> list[tuple[int, str, str]]:
        """Return number, state and move of what moves have here, all or of one partition.

        The state of what is not whole is "". A damaged note is left to `pulsar-ray verify`.
        """
        found = []
        with persistent(self._root):
            names = os.listdir(self._root) if self._root.is_dir() else []
            for name in names:
                of, is_staged, move_id = name.partition(_STAGED)
                if not of.isdigit() or number not in (None, int(of)):
                    continue
                if is_staged:
                    found.append((int(of), "", move_id))
                    continue
                with contextlib.suppress(CorruptData):
                    if (note := read_move_note(self._root / name)).state:
                        found.append((int(of), note.state, note.move_id))
        return sorted(found)

    def _delete(self, number: int, state: str, move_id: str) -> bool:
        place = self._root / str(number)
        with persistent(place):
            note = read_move_note(place)
            if (note.state, note.move_id) != (state, move_id) or self.is_shipped(number):
                return False  # of a shipped one its journal says when it may go
            # Renamed first: half a directory is not to be taken for a partition.
            gone = self._staged(number, f"gone-{move_id}")
            SYSTEM_DISK.rename(place, gone)
            SYSTEM_DISK.fsync_dir(self._root)
            shutil.rmtree(gone, ignore_errors=True)
        return True

    def _staged(self, number: int, move_id: str) -> Path:
        return self._root / f"{number}{_STAGED}{move_id}"

    def _place_of(self, number: int, move_id: str) -> Path:
        """Return where a move that was begun keeps its files. Raises NotAllowedError."""
        staged = self._staged(number, move_id)
        if not staged.is_dir():
            raise NotAllowedError(f"the move {move_id} of partition {number} was broken off")
        return staged


def _to_copy(directory: Path) -> dict[str, int]:
    """Return how far files count, without segments that are in the object store alone.

    Notes stand for those.
    """
    return {
        file: end
        for file, end in listed_files(directory).items()
        if (directory / file).exists() or not note_of(directory / file).exists()
    }


def _notes(directory: Path) -> dict[str, bytes]:
    """Return the small files beside a log, with the epochs of its cursors."""
    found = {}
    for path in directory.iterdir():
        is_log = path.name.startswith(f"{MANIFEST}-") or parse_segment_name(path.name) is not None
        if is_log or path.suffix == ".new" or path.name in _OWN_FILES or not path.is_file():
            continue
        if path.stat().st_size <= MOST_NOTE_BYTES:
            found[path.name] = path.read_bytes()
    for subscription in subscription_numbers(directory):
        epoch = cursor_directory(directory, subscription) / _EPOCH
        if epoch.is_file() and any(epoch.parent.glob(f"{CURSOR}-*")):
            found[epoch.relative_to(directory).as_posix()] = epoch.read_bytes()
    term = read_term(directory)
    if term is not None:
        found[TERM_FILE] = (directory / TERM_FILE).read_bytes()
    return found


def _first_ledger(directory: Path) -> int:
    """Return a counter that no ledger of a directory has, listed or not."""
    term = read_term(directory)
    return max(last_counter(path.name for path in directory.iterdir()) + 1, term.first_ledger if term else 0)


def _inside(directory: Path, file: str) -> Path:
    """Return the path of a file of a directory.

    Raises NotAllowedError for one outside of it.
    """
    path = directory / file
    if ".." in path.parts or Path(file).is_absolute():
        raise NotAllowedError(f"{file} is no file of a partition")
    return path


def _write_all(fd: int, data: bytes, start: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, start)
        view, start = view[written:], start + written


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
