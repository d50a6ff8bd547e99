"""The store's end of the socket by which a node reads offloaded segments (ADR 0142).

Each packet asks for one piece, and is answered by a descriptor of it, or by an error:

    to the store    [partition, segment, start of the piece, seconds]
    from the store  a descriptor, or [class of an error, text]
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.closed_places import bound_socket
from pulsar_ray.errors import (
    CorruptData,
    JournalDamaged,
    PulsarException,
    RemoteStoreRefused,
    RemoteStoreUnavailable,
)
from pulsar_ray.format.checksum import checksum
from pulsar_ray.journal.objects import piece_key, unpack_piece
from pulsar_ray.journal.offloaded.piece_cache import PieceCache
from pulsar_ray.journal.storage.object_store import ObjectStore
from pulsar_ray.ledger.offloaded import MAX_PACKET_BYTES, SOCKET, Piece, offloaded_names, read_note
from pulsar_ray.ledger.segment_file import parse_segment_name

logger = logging.getLogger(__name__)

GETS_AT_ONCE = 8
READ_AHEAD = 4
"""Pieces that are read ahead of somebody who reads in order."""
_RECENT = 4096
_BACKLOG = 1024
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 2.0


class Wanted(NamedTuple):
    """A piece of a partition's segment."""

    partition: str
    segment: str
    piece: Piece

    @property
    def key(self) -> str:
        """The name of the piece's object."""
        return piece_key(self.partition, self.segment, self.piece.start, self.piece.end)


def read_piece(store: ObjectStore, wanted: Wanted) -> memoryview:
    """Read the bytes of a piece from the object store.

    Raises JournalDamaged, which names the object, if it is gone or not what was written.
    """
    stored = store.get(wanted.key)
    if stored is None:
        raise JournalDamaged(
            f"{wanted.key} is not there, and segment {wanted.segment} of partition {wanted.partition} is "
            "only in the object store: bring the object back from the bucket's versions"
        )
    data = unpack_piece(wanted.key, stored)
    if len(data) != wanted.piece.end - wanted.piece.start or checksum(data) != wanted.piece.checksum:
        raise JournalDamaged(f"{wanted.key} has other bytes than were written there")
    return data


class SegmentDoor:
    """It hands out pieces on the loop of the store's journal.

    The object store is read on threads, each piece once however many want it. The next ones are read ahead
    for those who read in order.
    """

    def __init__(
        self, data_dir: Path, store: ObjectStore, cache: PieceCache, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._data_dir = data_dir
        self._store = store
        self._cache = cache
        self._loop = loop
        self._threads = ThreadPoolExecutor(GETS_AT_ONCE, "segments")
        self._listening: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, int] = {}
        self._failures: dict[str, str] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self.hits = self.misses = self.read_ahead = self.bytes = 0

    def open(self) -> None:
        """Listen from now on, in place of any former process. Raises UntrustedPath, OSError."""
        listening = bound_socket(self._data_dir, SOCKET, socket.SOCK_SEQPACKET)
        listening.listen(_BACKLOG)
        self._listening = listening
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Hand out nothing more."""
        listening, self._listening = self._listening, None
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()
        for connection in list(self._connections):
            self._end(connection)
        for task in [*self._tasks, *self._fetching.values()]:
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._cache.close()

    def status(self) -> dict[str, Any]:
        """Tell what was handed out, and what is kept for it."""
        return {
            "cacheBytes": self._cache.bytes,
            "cacheHits": self.hits,
            "cacheMisses": self.misses,
            "cacheEvicted": self._cache.evicted,
            "readAhead": self.read_ahead,
            "offloadedReadBytes": self.bytes,
        }

    def _accept(self) -> None:
        if self._listening is None:
            return
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        connection.setblocking(False)
        self._connections.add(connection)
        self._loop.add_reader(connection, self._read, connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            packet = connection.recv(MAX_PACKET_BYTES)
            partition, segment, start, wait_s = msgpack.unpackb(packet)
            is_name = partition.isdigit() and parse_segment_name(segment) is not None
        except BlockingIOError:
            return
        except (OSError, ValueError, TypeError, AttributeError):
            is_name = False
        if not is_name:
            self._end(connection)
            return
        self._loop.remove_reader(connection)
        task = self._loop.create_task(self._answer(connection, partition, segment, start, wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._loop.remove_reader(connection)
            connection.close()

    async def _answer(
        self, connection: socket.socket, partition: str, segment: str, start: int, wait_s: float
    ) -> None:
        try:
            fd = await self._piece(partition, segment, start, wait_s)
        except (PulsarException, OSError) as error:
            text = error.text if isinstance(error, PulsarException) else str(error)
            name = type(error).__name__ if isinstance(error, PulsarException) else "RemoteStoreUnavailable"
            with contextlib.suppress(OSError):
                connection.send(msgpack.packb([name, text]))
        else:
            with contextlib.suppress(OSError):
                socket.send_fds(connection, [b"\0"], [fd])
            os.close(fd)
        finally:
            self._end(connection)

    async def _piece(self, partition: str, segment: str, start: int, wait_s: float) -> int:
        wanted, before, behind = await self._loop.run_in_executor(
            None, self._looked_up, partition, segment, start
        )
        deadline = self._loop.time() + wait_s
        key, is_hit = wanted.key, True
        self._note(key)
        if before in self._recent:
            self._fetch_ahead(behind)
        while (fd := self._cache.open(key)) is None:
            is_hit = False
            await self._fetched(wanted, deadline, wait_s)
        self.hits, self.misses = self.hits + is_hit, self.misses + (not is_hit)
        self.bytes += wanted.piece.end - wanted.piece.start
        return fd

    def _note(self, key: str) -> None:
        self._recent[key] = None
        self._recent.move_to_end(key)
        if len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    async def _fetched(self, wanted: Wanted, deadline: float, wait_s: float) -> None:
        """Wait until a piece was read; raises what is wrong with it, RemoteStoreUnavailable."""
        key = wanted.key
        task = self._fetch(wanted)
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - self._loop.time()))
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        if not done:
            why = self._failures.get(key) or "the object store has not answered yet"
            raise RemoteStoreUnavailable(
                f"segment {wanted.segment} of partition {wanted.partition} is only in the object store, and "
                f"did not come within {wait_s:g} s: {why}"
            )
        task.result()

    def _fetch(self, wanted: Wanted) -> asyncio.Task[None]:
        key = wanted.key
        if (task := self._fetching.get(key)) is None:
            task = self._fetching[key] = self._loop.create_task(self._fetch_until_known(wanted))
            task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        self._fetching.pop(key, None)
        self._failures.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("a piece of a segment could not be read: %s", error)

    async def _fetch_until_known(self, wanted: Wanted) -> None:
        """Read a piece into the cache, and try again while somebody waits for it."""
        for pause_s in growing_pauses_s(_FIRST_PAUSE_S, _LONGEST_PAUSE_S):
            try:
                await self._loop.run_in_executor(self._threads, self._read_into_cache, wanted)
                return
            except (RemoteStoreUnavailable, RemoteStoreRefused) as error:
                self._failures[wanted.key] = error.text
                if not self._waiting.get(wanted.key):
                    raise
            await asyncio.sleep(pause_s)

    def _read_into_cache(self, wanted: Wanted) -> None:
        self._cache.keep(wanted.key, read_piece(self._store, wanted))

    def _fetch_ahead(self, behind: list[Wanted]) -> None:
        for wanted in behind:
            key = wanted.key
            if not self._cache.has(key) and key not in self._fetching:
                self.read_ahead += 1
                self._fetch(wanted)

    def _looked_up(self, partition: str, segment: str, start: int) -> tuple[Wanted, str, list[Wanted]]:
        """Find a piece in the notes, with the one before and those behind."""
        found = self._pieces_of(partition, segment)
        place = next((n for n, wanted in enumerate(found) if wanted.piece.start == start), None)
        if place is None:
            raise CorruptData(f"{self._directory(partition) / segment}", start, "its note has no such piece")
        names: list[str] | None = None
        before = found[place - 1].key if place else ""
        behind = found[place + 1 : place + 1 + READ_AHEAD]
        if not place or len(behind) < READ_AHEAD:
            names = offloaded_names(self._directory(partition))
            at = names.index(segment) if segment in names else 0
            # The segment before is trimmed first, perhaps at this moment.
            if not place and at and (former := self._pieces_of(partition, names[at - 1])):
                before = former[-1].key
            for each in self._following(partition, names[at + 1 :]):
                if len(behind) >= READ_AHEAD:
                    break
                behind.append(each)
        return found[place], before, behind

    def _following(self, partition: str, names: list[str]) -> Iterator[Wanted]:
        for name in names:
            yield from self._pieces_of(partition, name)

    def _pieces_of(self, partition: str, segment: str) -> list[Wanted]:
        found = read_note(self._directory(partition) / segment)
        return [] if found is None else [Wanted(partition, segment, piece) for piece in found.pieces]

    def _directory(self, partition: str) -> Path:
        return self._data_dir / "p" / partition
