"""A thread decides a catalog's changes, in the object store first (ADR 0140)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray.broker.catalog.catalog_file import read_catalog_identity
from pulsar_ray.broker.catalog.decided_file import DecidedFile, size_of
from pulsar_ray.errors import (
    BrokerPersistenceError,
    Moved,
    NotAllowedError,
    PulsarException,
    RemoteStoreUnavailable,
    ServiceUnitNotReady,
)
from pulsar_ray.journal.at_once import carried_out
from pulsar_ray.journal.decisions import DecisionLog, Found, rows_in
from pulsar_ray.journal.objects import CLUSTER, RowChange, pack_cluster, unpack_cluster
from pulsar_ray.journal.reading import create
from pulsar_ray.journal.storage.object_store import ObjectStore
from pulsar_ray.journal.store_journal import CountingStore, check_prefix
from pulsar_ray.lane.waiting import within

logger = logging.getLogger(__name__)

BEGIN_S = 15.0
"""Behind that a controller serves the file as it is, and decides nothing."""
DECIDED_S = 10.0
LOOK_S = 10.0
RETRY_S = 1.0
CLOSE_S = 5.0
GROUP_BYTES = 8 * 1024 * 1024
MOST_BYTES = 48 * 1024 * 1024
"""One change has to be one object, and so much may wait."""
DECISIONS_OF_A_COPY = 1_000


class _Ended(Exception):
    """The thread has to end."""


@dataclass(slots=True)
class _Waiting:
    """A change that is not decided yet."""

    turn: int
    rows: tuple[RowChange, ...]
    since_s: float
    size: int
    partitions: set[str] = field(default_factory=set)


class Decisions:
    """Implements `Recorder`. Methods may be called from any thread.

    `on_end` is called, from its thread, when this controller may not go on: another one decides, or the
    object store has more than what is served. `url` and `store` are those of the cluster's journal.
    """

    def __init__(
        self, path: Path, url: str, store: ObjectStore, *, decisions_of_a_copy: int = DECISIONS_OF_A_COPY
    ) -> None:
        self._path, self._url = path, url
        self.store = CountingStore(store)
        self.log = DecisionLog(lambda: secrets.token_bytes(16))
        self.on_end: Callable[[str, bool], None] = lambda reason, is_deposed: None
        self._decisions_of_a_copy = decisions_of_a_copy
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        """Held while this controller writes its file."""
        self._waiting: list[_Waiting] = []
        self._futures: list[tuple[int, Future[None]]] = []
        self._turn = self._decided = 0
        self._found: Found | None = None
        self._has_file = self._is_closed = self._is_late = False
        self._error: PulsarException | None = None
        self._end: PulsarException | None = None
        self._cluster_id = ""
        self._thread: threading.Thread | None = None

    # --- beginning ----------------------------------------------------------------------------------

    def begin(self, cluster_id: str, wait_s: float = BEGIN_S) -> bool:
        """Take the place of the controller before, with all that it decided.

        Returns whether there is a file then. While the object store does not answer for so long, the one that
        is here is served as it is, and nothing decided. Blocks. Raises RemoteStoreUnavailable without one,
        RemoteStoreRefused for what belongs to another cluster, and JournalDamaged.
        """
        self._cluster_id = cluster_id
        self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._found is not None or self._end is not None, wait_s)
            found = self._found
            self._is_late = found is None
            if self._end is not None:
                raise self._end.again()
        if found is None:
            if not self._path.is_file():
                self.close()
                raise RemoteStoreUnavailable(self._why())
            logger.warning("serves the catalog as it is here, and decides nothing: %s", self._why())
        else:
            self._bring_up(found)
        return self._path.is_file()

    def _bring_up(self, found: Found) -> None:
        if found.is_anew and self._is_earlier(found):
            found.was_seeded = found.is_anew = False
        elif found.is_anew:
            DecidedFile.make(self._path, self._url, self.log.place, rows_in(found))
        elif found.was_seeded:
            with contextlib.closing(DecidedFile(self._path, self._url)) as file:
                file.take_in(rows_in(found), self.log.place)

    def _is_earlier(self, found: Found) -> bool:
        """Whether the catalog here was made from that of the object store."""
        here = read_catalog_identity(self._path)
        there = {str(row.values["id"]) for row in rows_in(found) if row.table == "generation" and row.values}
        return here is not None and bool(here.generations) and there < set(here.generations)

    def go_on(self) -> None:
        """Decide from now on: the file is there."""
        with self._changed:
            self._has_file = True
            self._changed.notify_all()

    # --- what changes -------------------------------------------------------------------------------

    def check(self, rows: tuple[RowChange, ...]) -> None:
        """See Recorder. Raises RemoteStoreUnavailable, Moved, NotAllowedError for a change too large."""
        size = sum(map(size_of, rows))
        if size > MOST_BYTES:
            raise NotAllowedError(f"a change of about {size} bytes is too large to be decided: divide it")
        with self._changed:
            if self._end is not None:
                raise self._end.again()
            if self._found is None:
                raise RemoteStoreUnavailable(self._why())
            is_old = self._waiting and time.monotonic() - self._waiting[0].since_s > DECIDED_S
            if is_old or sum(each.size for each in self._waiting) + size > MOST_BYTES:
                raise self._why_not()

    def record(self, rows: tuple[RowChange, ...]) -> None:
        """See Recorder."""
        named = {str(row.values["name"]) for row in rows if row.table == "partition" and row.values}
        with self._changed:
            self._turn += 1
            size = sum(map(size_of, rows))
            self._waiting.append(_Waiting(self._turn, rows, time.monotonic(), size, named))
            self._changed.notify_all()

    async def settled(self, partitions: Collection[str] = (), wait_s: float = DECIDED_S) -> None:
        """See Catalog.settled."""
        with self._changed:
            if self._end is not None:
                raise self._end.again()
            turn = self._turn if not partitions else self._last_about(set(partitions))
            if turn <= self._decided:
                return
            future: Future[None] = Future()
            self._futures.append((turn, future))
        try:
            await within(asyncio.wrap_future(future), wait_s)
        except asyncio.TimeoutError:
            with self._changed:
                self._futures = [each for each in self._futures if each[1] is not future]
            raise self._why_not() from None

    def _last_about(self, partitions: set[str]) -> int:
        return max((each.turn for each in self._waiting if each.partitions & partitions), default=0)

    def _why_not(self) -> PulsarException:
        return self._error.again() if self._error is not None else RemoteStoreUnavailable(self._why())

    def _why(self) -> str:
        failures = sorted(self.store.failing.values())
        failure = failures[0][1] if failures else "it has not answered yet"
        return f"the object store does not take what is decided about topics: {failure}; try again"

    # --- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._decide_all()
        except _Ended:
            pass
        except PulsarException as error:
            self._finish(error, is_deposed=False)
        except Exception as error:
            logger.exception("deciding failed")
            self._finish(ServiceUnitNotReady(f"deciding failed: {error}"), is_deposed=False)

    def _decide_all(self) -> None:
        self._claim()  # ahead of all: nobody ends what belongs to another cluster
        known = None
        if self._path.is_file():
            with contextlib.closing(DecidedFile(self._path, self._url)) as file:
                known = file.place
        found = carried_out(self.log.begin(known), self.store, self._pause)
        with self._changed:
            is_late = self._is_late
            if not is_late:
                self._found = found
                self._changed.notify_all()
        if is_late and found.was_seeded and (found.is_anew or found.batches):
            reason = "the object store has decisions that are not here: beginning anew with them"
            self._finish(Moved(reason), is_deposed=False)
            return
        with self._changed:
            self._changed.wait_for(lambda: self._has_file or self._is_closed)
        self._check_open()
        with contextlib.closing(DecidedFile(self._path, self._url)) as file:
            if not found.was_seeded:
                carried_out(self.log.copy(file.parts()), self.store, self._pause)
                self._write(file, ())
            with self._changed:
                self._found = found
            while self._decide_next(file):
                if self.log.since_copy >= self._decisions_of_a_copy:
                    carried_out(self.log.copy(file.parts()), self.store, self._pause)

    def _claim(self) -> None:
        """Raise RemoteStoreRefused if the prefix is another cluster's; rights may be given back."""
        claim = create(CLUSTER, pack_cluster(self._cluster_id))
        other = carried_out(claim, self.store, self._pause)
        if other is not None:
            check_prefix(unpack_cluster(other), self._url, self._cluster_id)

    def _decide_next(self, file: DecidedFile) -> bool:
        """Decide what waits, as one object; False once another controller decides."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed, LOOK_S)
            group = self._group()
        self._check_open()
        if not group:
            is_ours = carried_out(self.log.look(), self.store, self._pause)
        else:
            rows = {(row.table, row.row_id): row for each in group for row in each.rows}
            is_ours = carried_out(self.log.decide(tuple(rows.values())), self.store, self._pause)
            if is_ours:
                self._take_in(file, tuple(rows.values()))
                self._settle(group)
        if not is_ours:
            self._finish(Moved("another controller decides in place of this one: ask again"), is_deposed=True)
        return is_ours

    def _group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        for each in self._waiting:
            size += each.size
            if group and size > GROUP_BYTES:
                break
            group.append(each)
        return group

    def _take_in(self, file: DecidedFile, rows: tuple[RowChange, ...]) -> None:
        while True:
            try:
                self._write(file, rows)
            except BrokerPersistenceError as error:
                self._error = error
                self._pause(RETRY_S)
            else:
                self._error = None
                return

    def _write(self, file: DecidedFile, rows: tuple[RowChange, ...]) -> None:
        with self._writing:
            self._check_open()
            file.take_in(rows, self.log.place)

    def _settle(self, group: list[_Waiting]) -> None:
        with self._changed:
            del self._waiting[: len(group)]
            self._decided = group[-1].turn
            done = [future for turn, future in self._futures if turn <= self._decided]
            self._futures = [each for each in self._futures if each[0] > self._decided]
        for future in done:
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _finish(self, error: PulsarException, *, is_deposed: bool) -> None:
        with self._changed:
            if self._is_closed:  # an answer came late: another controller may serve in this process by now
                return
            self._end = error
            futures, self._futures = self._futures, []
            self._changed.notify_all()
        logger.error("nothing is decided here any more: %s", error.text)
        for _, future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(error.again())
        self.on_end(error.text, is_deposed)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)
        self._check_open()

    def _check_open(self) -> None:
        if self._is_closed:
            raise _Ended

    def close(self) -> None:
        """End the thread; what is not decided by now may never be.

        A request that hangs is not waited for: its answer changes nothing here. Not so a write of the file,
        which the next controller may have.
        """
        with self._writing, self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=CLOSE_S)
