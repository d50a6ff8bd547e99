"""Offloaded segments, whose bytes are in the object store, have a note here (ADR 0142).

The note lies beside where the file was, as `<segment>.offloaded`:

    magic 4 | msgpack (length, ((start, end, checksum), ...)) | xxh3_64 8

It is durable before the file goes. A reader that finds no file looks for the note, and gets one piece after
the other from the node's store, as a descriptor, through a socket of the data directory.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgpack

from pulsar_ray.closed_places import is_trusted_user, short_socket_path
from pulsar_ray.errors import (
    CorruptData,
    JournalDamaged,
    RemoteStoreRefused,
    RemoteStoreUnavailable,
    UntrustedPath,
    error_from,
)
from pulsar_ray.format.checksum import checksum
from pulsar_ray.ledger.disk import SYSTEM_DISK, write_whole
from pulsar_ray.ledger.segment_file import parse_segment_name

SUFFIX = ".offloaded"
SOCKET = "segments.sock"
MAX_PACKET_BYTES = 64 * 1024
WAIT_S = 10.0
_ANSWER_GRACE_S = 5.0
_PAUSE_S = 0.2
_MAGIC = b"PRO1"
_SUM = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")

AWAY = (RemoteStoreUnavailable, RemoteStoreRefused)
"""Errors of an object store that does not hand out what it may well have."""
UNREAD = (*AWAY, JournalDamaged)
"""Errors of offloaded segments: nobody may take those for keyless or empty."""


class Piece(NamedTuple):
    """One object with a range of a segment, and the checksum of its bytes."""

    start: int
    end: int
    checksum: int


class Offloaded(NamedTuple):
    """A note tells a segment's length, and the pieces that have it."""

    length: int
    pieces: tuple[Piece, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the pieces have each byte once."""
        ends = [0, *(piece.end for piece in self.pieces)]
        return ends[-1] == self.length and all(
            p.start == at for p, at in zip(self.pieces, ends, strict=False)
        )


FetchPiece = Callable[[Path, Piece, float], int]
"""Returns a descriptor of a segment's piece, within so many seconds."""


def note_of(path: Path) -> Path:
    """Return where the note of a segment lies."""
    return path.with_name(path.name + SUFFIX)


def segment_of_note(name: str) -> str:
    """Return the segment that a file is the note of, "" for others."""
    name = name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else ""
    return name if parse_segment_name(name) else ""


def offloaded_names(directory: Path) -> list[str]:
    """Return the segments of a directory that have a note, in their order."""
    found = [(parse_segment_name(name), name) for name in map(segment_of_note, _names(directory)) if name]
    return [name for _, name in sorted(found)]


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def is_stored(path: Path) -> bool:
    """Return whether a segment can be read: from here, or from the object store."""
    return path.exists() or note_of(path).exists()


def is_offloaded(path: Path) -> bool:
    """Return whether a segment is only in the object store."""
    return not path.exists() and note_of(path).exists()


def write_note(path: Path, found: Offloaded) -> None:
    """Write the note of a segment durably. Raises OSError."""
    body = _MAGIC + msgpack.packb([found.length, [list(piece) for piece in found.pieces]])
    write_whole(SYSTEM_DISK, note_of(path), body + _SUM.pack(checksum(body)))


def read_note(path: Path) -> Offloaded | None:
    """Return the note of a segment, None if it has none. Raises CorruptData."""
    place = note_of(path)
    try:
        stored = place.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CorruptData(str(place), 0, str(error)) from error
    body = stored[: -_SUM.size]
    if body[:4] != _MAGIC or _SUM.unpack(stored[-_SUM.size :])[0] != checksum(body):
        raise CorruptData(str(place), 0, "not a note of an offloaded segment")
    length, pieces = msgpack.unpackb(body[4:], use_list=False)
    return Offloaded(length, tuple(Piece(*piece) for piece in pieces))


class _Reading:
    """This process gets pieces of the node's store, or in another way."""

    def __init__(self) -> None:
        self.fetch: FetchPiece = fetch_from_store
        self.wait_s = WAIT_S


def fetch_from_store(path: Path, piece: Piece, wait_s: float) -> int:
    """Get a piece from the store whose data directory a segment lies in.

    Raises RemoteStoreUnavailable if it does not come in time, and what the store answers.
    """
    deadline, pausing = time.monotonic() + wait_s, threading.Event()
    while True:
        try:
            answer, descriptors = _asked(path, piece, wait_s)
            break
        except OSError as error:  # it may be starting just now
            if time.monotonic() >= deadline:
                raise RemoteStoreUnavailable(
                    f"{path} is only in the object store, and the store of this node does not hand it out "
                    f"({error}): start the broker with --remote, or wait until the object store answers"
                ) from None
        pausing.wait(min(_PAUSE_S, max(0.0, deadline - time.monotonic())))
    if descriptors:
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]
    if not answer:
        raise RemoteStoreUnavailable(f"{path} is only in the object store, and the node's store has ended")
    name, text = msgpack.unpackb(answer)
    raise error_from(name, text)


def _asked(path: Path, piece: Piece, wait_s: float) -> tuple[bytes, list[int]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(wait_s + _ANSWER_GRACE_S)
        with short_socket_path(path.parents[2], SOCKET) as (place, _):
            asking.connect(place)
        _check_peer(asking, path)
        asking.send(msgpack.packb([path.parent.name, path.name, piece.start, wait_s]))
        answer, descriptors, _, _ = socket.recv_fds(asking, MAX_PACKET_BYTES, 1)
        return answer, descriptors


def _check_peer(asking: socket.socket, path: Path) -> None:
    stored = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(stored)
    if not is_trusted_user(uid):
        raise UntrustedPath(f"user {uid} hands out the segments of {path.parent}: nothing is read from there")


READING = _Reading()


@contextlib.contextmanager
def reading_by(fetch: FetchPiece) -> Iterator[None]:
    """Read offloaded segments in another way, for tools without a broker."""
    before, READING.fetch = READING.fetch, fetch
    try:
        yield
    finally:
        READING.fetch = before


class OffloadedSegment:
    """Reads one segment whose bytes are elsewhere, a piece at a time; from any thread.

    The piece that was read last stays open here, whatever becomes of it in the node's cache.
    """

    def __init__(self, path: Path, found: Offloaded) -> None:
        self._path = path
        self.size = found.length
        self._pieces = found.pieces
        self._piece = Piece(0, 0, 0)
        self._fd = -1
        self._lock = threading.Lock()

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read some bytes at an offset; 0 at the end.

        Raises RemoteStoreUnavailable, RemoteStoreRefused, JournalDamaged for an object that is gone or
        damaged, and FileNotFoundError for a segment that was trimmed meanwhile.
        """
        with self._lock:
            if not self._piece.start <= offset < self._piece.end and not self._turn_to(offset):
                return 0
            most = self._piece.end - offset
            return os.preadv(self._fd, [view[:most]], offset - self._piece.start)

    def read_up_to(self, offset: int, length: int) -> bytes:
        """Read so many bytes, fewer at the end; raises as `read_into`."""
        buffer = bytearray(max(0, min(length, self.size - offset)))
        view, done = memoryview(buffer), 0
        while done < len(buffer) and (count := self.read_into(offset + done, view[done:])):
            done += count
        return bytes(view[:done])

    def _turn_to(self, offset: int) -> bool:
        if not 0 <= offset < self.size:
            return False
        while True:
            pieces = self._pieces
            piece = next(each for each in pieces if each.start <= offset < each.end)
            try:
                fd = READING.fetch(self._path, piece, READING.wait_s)
            except CorruptData:
                # There is no such piece any more: it was brought back, offloaded again, or trimmed.
                if (found := self._opened_here()) is not None:
                    piece, fd = found
                elif self._pieces == pieces:
                    raise
                else:
                    continue
            self._close()
            self._piece, self._fd = piece, fd
            return True

    def _opened_here(self) -> tuple[Piece, int] | None:
        """Open the file if it is here again, else look at the note again."""
        try:
            return Piece(0, self.size, 0), os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            found = read_note(self._path)
            if found is None:
                raise
            self._pieces = found.pieces
            return None

    def close(self) -> None:
        """Give up the piece that is open."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd, self._piece = self._fd, -1, Piece(0, 0, 0)
        if fd >= 0:
            os.close(fd)


def open_offloaded(path: Path) -> OffloadedSegment | None:
    """Open a segment by its note, None without one. Raises CorruptData."""
    found = read_note(path)
    return None if found is None else OffloadedSegment(path, found)
