"""Shipping: what is synced here becomes objects of this life, in order, several under way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from pulsar_ray.journal.objects import DATA, Append, JournalObject, Place, journal_key, pack_journal
from pulsar_ray.journal.reading import MOST_UNDER_WAY, create
from pulsar_ray.journal.requests import Task, pauses_s

logger = logging.getLogger(__name__)

READ = Callable[[str, str, int, int], bytes]
_BEGIN_ANEW = (("adopt",), ("drop",), ("forget",))
"""Marks behind which nothing counts that a partition had before."""


@dataclass(frozen=True)
class Cut:
    """When a new object is begun."""

    object_bytes: int = 8 * 1024 * 1024
    under_way: int = MOST_UNDER_WAY
    sync_seconds: float = 0.005
    lone_bytes: int = 64 * 1024
    """Ship so much at once if somebody waits and nothing is under way.

    A stream, which is more, fills larger objects.
    """
    seconds: float = 0.25
    queued_appends: int = 100_000


@dataclass
class Queued:
    """An append that waits: its bytes are read from the file when it goes."""

    append: Append
    length: int
    turn: int
    since: float


class Shipping:
    """It decides when a life's next object begins, and knows the prefix."""

    def __init__(self, store: str, life: int, cut: Cut, read: READ, nonce: Callable[[], bytes]) -> None:
        self.store, self.life, self.cut = store, life, cut
        self._read, self._nonce = read, nonce
        self._queue: deque[Queued] = deque()
        self._queued_bytes = 0
        self._flying: dict[int, list[Queued]] = {}
        self._done: set[int] = set()
        self.next_number = self.prefix = 0
        self.turn = self.shipped = 0
        self.shipped_bytes = 0
        self.is_deposed = False
        self.unreadable: dict[str, str] = {}
        """Partitions of which nothing more is shipped, because a file has lost bytes, and why."""
        self.read_failure = ""
        """Why the disk does not give the bytes of the next object now."""
        self._unread: list[Queued] = []
        self._read_again_at = 0.0
        self._pauses = pauses_s()

    @property
    def has_room(self) -> bool:
        """Whether more may be queued; memory is bounded by it."""
        return len(self._queue) < self.cut.queued_appends

    @property
    def oldest_since(self) -> float | None:
        """When the oldest append was queued that is not shipped; None if all is."""
        for number in sorted(self._flying):
            if self._flying[number]:
                return self._flying[number][0].since
        waiting = self._unread or self._queue
        return waiting[0].since if waiting else None

    @property
    def unshipped_bytes(self) -> int:
        """How many bytes are queued or under way."""
        taken = [self._unread, *self._flying.values()]
        return self._queued_bytes + sum(item.length for batch in taken for item in batch)

    @property
    def is_idle(self) -> bool:
        """Whether all that was queued is shipped."""
        return self.shipped == self.turn

    def queue(self, now: float, append: Append, length: int = 0) -> int:
        """Queue an append that is synced here; return its turn."""
        self.turn += 1
        last = self._queue[-1] if self._queue else None
        if last and not append.mark and not last.append.mark and _goes_on(last, append):
            last.length += length
            last.turn = self.turn
        else:
            self._queue.append(Queued(append, length, self.turn, now))
        self._queued_bytes += length
        return self.turn

    def due_seconds(self, now: float, waits_for_sync: bool) -> float | None:
        """Return in how many seconds the next object begins, None if none can."""
        if self._unread:
            return max(0.0, self._read_again_at - now)
        if not self._queue or self.next_number >= self.prefix + self.cut.under_way:
            return None
        if self._queued_bytes >= self.cut.object_bytes:
            return 0.0
        bound = self.cut.seconds
        if waits_for_sync:
            is_lone = self.next_number == self.prefix and self._queued_bytes <= self.cut.lone_bytes
            bound = 0.0 if is_lone else self.cut.sync_seconds  # see ADR 0150
        return max(0.0, self._queue[0].since + bound - now)

    def begin(self, now: float, waits_for_sync: bool) -> list[Task[list[Queued]]]:
        """Return tasks that ship what is due, and return what became durable.

        None begins before the disk gave the bytes of the one before: holes are noted in their order.
        """
        tasks = []
        while not self.is_deposed and self.due_seconds(now, waits_for_sync) == 0.0:
            self._unread = self._unread or self._take()
            try:
                batch, appends = self._readable(self._unread)
            except OSError as error:
                self._note_failure(now, error)
                break
            self.read_failure, self._pauses, self._unread = "", pauses_s(), []
            self._flying[self.next_number] = batch
            tasks.append(self._put(self.next_number, appends))
            self.next_number += 1
        return tasks

    def _note_failure(self, now: float, error: OSError) -> None:
        if self.read_failure != str(error):
            self.read_failure = str(error)
            logger.error("store %s ships nothing more until its disk is read: %s", self.store, error)
        self._read_again_at = now + next(self._pauses)

    def _take(self) -> list[Queued]:
        batch: list[Queued] = []
        room = self.cut.object_bytes
        while self._queue and (not batch or self._queue[0].length <= room):
            item = self._queue.popleft()
            if item.length > self.cut.object_bytes:  # the rest of it begins the next object
                rest = replace(item.append, offset=item.append.offset + self.cut.object_bytes)
                self._queue.appendleft(
                    Queued(rest, item.length - self.cut.object_bytes, item.turn, item.since)
                )
                item = Queued(item.append, self.cut.object_bytes, 0, item.since)
            room -= item.length
            self._queued_bytes -= item.length
            batch.append(item)
        return batch

    def _put(self, number: int, appends: tuple[Append, ...]) -> Task[list[Queued]]:
        body = pack_journal(JournalObject(self._nonce(), DATA, self.life, appends))
        other = yield from create(journal_key(self.store, Place(self.life, number)), body)
        if other is not None:
            self.depose()  # it can only be an end, and what is behind an end is read by nobody
            return []
        return self.completed(number)

    def depose(self) -> None:
        """Note that this life is over: it ships and answers nothing more."""
        self.is_deposed = True

    def completed(self, number: int) -> list[Queued]:
        """Note that an object is there; return the appends that are in the prefix now."""
        self._done.add(number)
        durable = []
        while self.prefix in self._done:
            self._done.discard(self.prefix)
            for item in self._flying.pop(self.prefix):
                self.shipped = max(self.shipped, item.turn)
                self.shipped_bytes += item.length
                if item.append.file or item.append.mark:  # else it was left out
                    durable.append(item)
            self.prefix += 1
        return durable

    def _readable(self, batch: list[Queued]) -> tuple[list[Queued], tuple[Append, ...]]:
        """Return a batch and its appends with their bytes, without cut files.

        Appends behind such a hole, or a file that is gone, in the same partition could not be placed, and a
        reader would believe its marks, so all of them are left out, until the partition begins anew or goes.
        A cursor may go at any time, with its subscription. Nothing is changed if the disk raises OSError.
        """
        taken, appends, unreadable = list[Queued](), list[Append](), dict(self.unreadable)
        for item in batch:
            a = item.append
            if a.mark[:1] in _BEGIN_ANEW:
                unreadable.pop(a.partition, None)
            data = b""
            if a.partition not in unreadable:
                if item.length:
                    data = self._read(a.partition, a.file, a.offset, a.offset + item.length)
                if len(data) == item.length:
                    taken.append(item)
                    appends.append(replace(a, data=data))
                    continue
                if "/" not in a.file:
                    unreadable[a.partition] = f"{a.file} ends before byte {a.offset + item.length}"
            taken.append(replace(item, append=Append(a.partition, "", 0), length=0))
        self.unreadable = unreadable
        return taken, tuple(appends)


def _goes_on(last: Queued, append: Append) -> bool:
    same = (last.append.partition, last.append.file) == (append.partition, append.file)
    return same and last.append.offset + last.length == append.offset
