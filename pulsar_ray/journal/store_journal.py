"""A thread runs one life of a store's journal, and a door for tellers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, TypeVar

from pulsar_ray.errors import (
    RemoteStoreRefused,
    RemoteStoreUnavailable,
    ServiceUnitNotReady,
    StoreSealed,
    Timeout,
)
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.journal.journal_door import JournalDoor
from pulsar_ray.journal.life_runner import LifeRunner
from pulsar_ray.journal.objects import CLUSTER, CatalogEntry, Place, pack_cluster, unpack_cluster
from pulsar_ray.journal.offloaded.piece_cache import PieceCache
from pulsar_ray.journal.offloaded.segment_door import SegmentDoor
from pulsar_ray.journal.reading import stores_in_bucket, walk
from pulsar_ray.journal.requests import Get, Task, ask
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.journal.storage.object_store import ObjectStore, prove
from pulsar_ray.journal.store_files import StoreFiles, raise_life
from pulsar_ray.journal.store_life import Deposed, Serve, StoreLife, seal

logger = logging.getLogger(__name__)

ADOPTED_AT_ONCE = 8
BUSY_S = 0.05
END_PATIENCE_S = 5.0
CACHE_BYTES = 1024 * 1024 * 1024
AWAY_S = 3.0
"""Requests may fail for so long, one after the other, before anybody is told."""
T = TypeVar("T")


class CountingStore:
    """Counts the requests to an object store, and keeps why they fail."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.puts = self.gets = self.lists = self.put_bytes = self.errors = 0
        self.failing: dict[str, tuple[float, str]] = {}
        """Since when writes or reads fail, by the monotonic clock, and why."""
        self.delete_failure = ""

    def create(self, key: str, body: bytes) -> bool:
        self.puts += 1
        with self._watched("writes"):
            was_made = self._inner.create(key, body)
        self.put_bytes += len(body)
        return was_made

    def get(self, key: str) -> Buffer | None:
        self.gets += 1
        with self._watched("reads"):
            return self._inner.get(key)

    def list(self, prefix: str) -> list[str]:
        self.lists += 1
        with self._watched("reads"):
            return self._inner.list(prefix)

    def head(self, key: str) -> int | None:
        self.gets += 1
        with self._watched("reads"):
            return self._inner.head(key)

    def delete(self, keys: tuple[str, ...]) -> None:
        if not keys:
            return
        try:
            self._inner.delete(keys)
        except (RemoteStoreUnavailable, RemoteStoreRefused) as error:
            self.errors += 1
            self.delete_failure = error.text
            raise
        self.delete_failure = ""

    @contextlib.contextmanager
    def _watched(self, kind: str) -> Iterator[None]:
        try:
            yield
        except (RemoteStoreUnavailable, RemoteStoreRefused) as error:
            self.errors += 1
            since, _ = self.failing.get(kind, (time.monotonic(), ""))
            self.failing[kind] = (since, error.text)
            raise
        self.failing.pop(kind, None)


def check_remote(url: str) -> str:
    """Return why an object store does not answer, "" if it does.

    Raises RemoteStoreRefused if no journal can be kept there.
    """
    try:
        prove(open_object_store(url), secrets.token_hex(8))
    except RemoteStoreUnavailable as error:
        return error.text
    return ""


def failure_of(store: CountingStore) -> str:
    """Return why a request fails just now, "" if all are answered."""
    return min([*store.failing.values(), (time.monotonic(), "")])[1]


def why_away(store: CountingStore) -> str:
    """Return why no request is answered for some time, "" if they are."""
    now = time.monotonic()
    since, failure = min([*store.failing.values(), (now, "")])
    return (
        "" if not failure or now - since < AWAY_S else f"has not answered for {now - since:.0f} s: {failure}"
    )


def claim_prefix(store: ObjectStore, url: str, cluster_id: str) -> None:
    """Make a prefix that of a cluster, once for ever.

    Partitions are told apart by their numbers, of which each cluster has a first: another one would be taken
    for a copy that is behind the time. Raises RemoteStoreRefused if it is another cluster's.
    """
    if store.create(CLUSTER, pack_cluster(cluster_id)):
        return
    stored = store.get(CLUSTER)
    check_prefix(cluster_id if stored is None else unpack_cluster(stored), url, cluster_id)


def check_prefix(owner: str, url: str, cluster_id: str) -> None:
    """Raise RemoteStoreRefused if a prefix is another cluster's."""
    if owner != cluster_id:
        raise RemoteStoreRefused(
            f"{url} is that of cluster {owner}, and this store is of cluster {cluster_id}: give this cluster "
            "a prefix of its own (or bring the other one back onto an empty directory with --from)"
        )


class StoreJournal:
    """Ships all that is told of one store.

    Methods may be called from any thread but its own. Without `cluster_id` it is not looked whose the prefix
    is, which is for a directory that has nothing yet.

    Raises RemoteStoreRefused if the object store does not keep what the journal rests on, or refuses us, and
    RemoteStoreUnavailable if it does not answer.
    """

    def __init__(
        self,
        data_dir: Path,
        store_id: str,
        url: str,
        cluster_id: str = "",
        cache_bytes: int = CACHE_BYTES,
        least_free_bytes: int = 0,
    ) -> None:
        self.url = url
        self._cache = PieceCache(data_dir, cache_bytes, least_free_bytes)
        self._data_dir = data_dir
        self._store = CountingStore(open_object_store(url))
        prove(self._store, secrets.token_hex(8))
        if cluster_id:
            claim_prefix(self._store, url, cluster_id)
        self._files = StoreFiles(data_dir / "p")
        life = raise_life(data_dir, url)
        self._life = StoreLife(store_id, life, self._files, lambda: secrets.token_bytes(16))
        self._deposed: Deposed | None = None
        self._is_sealed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._begun: Future[None] = Future()
        self._thread.start()
        if self._begun.exception() is not None:
            self._thread.join()
        self._begun.result()

    def _run(self) -> None:
        try:
            try:
                self._loop.run_until_complete(self._begin())
            except BaseException as error:  # noqa: BLE001 - raised where it is begun
                self._begun.set_exception(error)
            else:
                self._begun.set_result(None)
                self._loop.run_forever()
            self._end_tasks()
        finally:
            self._loop.close()

    def _end_tasks(self) -> None:
        """End the tasks that callers of other threads wait for, also late ones."""
        for _ in range(2):
            self._loop.run_until_complete(asyncio.sleep(0))
            if tasks := asyncio.all_tasks(self._loop):
                for task in tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=END_PATIENCE_S))

    async def _begin(self) -> None:
        self._runner = LifeRunner(self._life, self._store, self._act)
        self._door = JournalDoor(self._data_dir, self._runner, self._files, self._loop)
        self._runner.on_advance = self._door.answer
        self._segments = SegmentDoor(self._data_dir, self._store, self._cache, self._loop)
        try:
            self._door.open()
            self._segments.open()
            self._runner.start()
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        self._door.close()
        self._segments.close()
        self._runner.end()

    def _act(self, action: Serve | Deposed) -> None:
        if isinstance(action, Deposed) and self._deposed is None:
            self._deposed = action
            logger.error("store %s: %s", self._life.store, self._sealed())
            self._door.close()

    def _sealed(self) -> str:
        if self._is_sealed:
            return "others have taken the store over, and it becomes a new one once nobody works in it"
        if self._deposed is not None and self._deposed.is_set_aside:
            return "the journal has gone on without this directory, or has what is missing here"
        return "the store was taken over while it was away"

    @property
    def is_ended(self) -> bool:
        """Whether this life is over, for whatever reason."""
        return self._deposed is not None

    @property
    def is_serving(self) -> bool:
        """Whether this life ships what is stored here."""
        return self._life.is_ready and self._deposed is None

    def owners_if_sealed(self) -> dict[str, CatalogEntry] | None:
        """Return the last entry about each partition, None if nobody has sealed this store; blocks.

        A directory that is a copy, or lacks what was shipped, is not sealed by that.
        """
        if not self._is_sealed:
            self._is_sealed = self.run(lambda life: walk(life.store)).is_sealed
        if not self._is_sealed:
            return None
        self.run(lambda life: life.ownership.read())
        return dict(self._life.ownership.owners)

    def check(self) -> None:
        """Raise StoreSealed if others have taken the store over."""
        if self._deposed is not None:
            remedy = ""
            if self._deposed.is_set_aside:
                remedy = (
                    f": bring back what was shipped onto an empty directory (`--from {self.url}`), or let "
                    "other stores take it over (`pulsar-ray stores forget`)"
                )
            raise StoreSealed(f"{self._data_dir}: {self._sealed()}; nothing of it is served{remedy}")

    def run(self, task: Callable[[StoreLife], Task[T]], timeout_s: float | None = None) -> T:
        """Run a task of the life, and return its result; blocks."""

        async def call() -> T:
            return await self._runner.run(task(self._life))

        return self._result_of(call(), timeout_s)

    def _result_of(self, call: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the journal's loop, and return its result; blocks.

        Raises ServiceUnitNotReady if the journal has ended, or ends meanwhile.
        """
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result(timeout_s)
        except CancelledError:
            pass
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            call.close()
        raise ServiceUnitNotReady(f"the journal of store {self._life.store} has ended: ask again")

    def cluster_id(self) -> str:
        """Return the cluster that the prefix belongs to, "" if nobody has claimed it; blocks."""
        stored = self.run(lambda _: ask(Get(CLUSTER)))
        return "" if stored is None else unpack_cluster(stored)

    def stores(self) -> list[str]:
        """Return the stores that have a journal in the object store; blocks."""
        return self.run(lambda _: stores_in_bucket())

    def ends(self, stores: Iterable[str]) -> dict[str, Place]:
        """Return how far other stores' journals go by now; blocks."""
        return {store: self.run(lambda _, store=store: walk(store)).place for store in stores}  # type: ignore[misc]

    def owned_by(self, store: str) -> list[str]:
        """Return the partitions that a store owns; blocks."""
        self.run(lambda life: life.ownership.read())
        owners = self._life.ownership.owners
        return sorted(partition for partition, entry in owners.items() if entry.store == store)

    def owners_of(self, partitions: Iterable[str]) -> dict[str, str]:
        """Return the stores that own these partitions, without those that nobody owns; blocks."""
        self.run(lambda life: life.ownership.read())
        owners = self._life.ownership.owners
        return {each: owners[each].store for each in partitions if each in owners}

    def seal(self, store: str) -> list[str]:
        """End a store's journal for ever, and return the partitions that it owned then; blocks."""
        self.run(lambda life: seal(store, life.ownership, life.nonce))
        return self.owned_by(store)

    def adopt(self, partitions: Iterable[str]) -> list[str]:
        """Restore partitions of sealed stores, and return those that are ours then; blocks.

        They are as the shipped journal has them. Asked again it does the rest. Raises JournalDamaged for one
        whose objects are missing or damaged, after the others were restored.
        """
        turns = asyncio.Semaphore(ADOPTED_AT_ONCE)

        async def one(partition: str) -> None:
            async with turns:
                life = self._life
                while life.is_busy(partition):  # somebody has asked for it before
                    await asyncio.sleep(BUSY_S)
                await self._runner.run(life.adopt(partition, life.ownership.owner(partition)))

        async def call() -> list[str]:
            await self._runner.run(self._life.ownership.read())
            wanted = list(partitions)
            results = await asyncio.gather(*map(one, wanted), return_exceptions=True)
            self._life.restoring.forget()
            for failed in filter(None, results):
                raise failed
            return [each for each in wanted if each in self._life.serving]

        return self._result_of(call())

    def depart(self, partition: int) -> None:
        """Ship all of a partition that stopped, and that it leaves; blocks.

        Raises ServiceUnitNotReady if it is not owned here.
        """

        async def call() -> None:
            if str(partition) not in self._files.partitions():
                raise ServiceUnitNotReady(f"partition {partition} is not in the journal yet")
            await self._runner.run(self._life.depart(str(partition)))

        self._result_of(call())

    def take(self, partition: int) -> str:
        """Own a partition that left, as it was shipped; blocks.

        Returns the store that owns it then.
        """
        return self.run(lambda life: life.take(str(partition)))

    def take_back(self, partition: int) -> str:
        """Own a partition again that left, if nobody else does by now; blocks. See StoreLife."""
        return self.run(lambda life: life.take_back(str(partition)))

    def let_go(self, partition: int) -> bool:
        """Drop a partition that another store owns by now; whether it is gone; blocks."""
        self.run(lambda life: life.look())
        self.run(lambda life: life.until_shipped())
        return str(partition) not in self._files.partitions()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the former life is closed, and all of this directory shipped.

        Raises Timeout.
        """
        deadline = time.monotonic() + timeout_s
        while not self._life.is_ready:
            self.check()
            if time.monotonic() > deadline:
                why = self._runner.problem or self._life.disk_failure or failure_of(self._store)
                raise Timeout(f"{self.url}: {why or 'its journal is not read yet'}")
            time.sleep(0.01)

    def drop(self, partition: int) -> bool:
        """Remove a partition from here and from the journal; False if it never was there.

        Its files are gone when this returns, the note that it is dropped once the journal has that.
        """

        async def call() -> bool:
            name = str(partition)
            if not self._files.mark_dropped(name):
                return False
            self._life.drop(name)
            self._runner.nudge()
            return True

        return self._result_of(call())

    def status(self) -> dict[str, Any]:
        """Tell where the journal is, what waits, and why."""
        shipping, store = self._life.shipping, self._store
        oldest = shipping.oldest_since
        return {
            "url": self.url,
            "life": self._life.life,
            "isReady": self._life.is_ready,
            "partitions": len(self._life.serving),
            "objects": shipping.prefix,
            "shippedBytes": shipping.shipped_bytes,
            "waitingBytes": shipping.unshipped_bytes,
            "lagSeconds": 0.0 if oldest is None else max(0.0, self._loop.time() - oldest),
            "puts": store.puts,
            "putBytes": store.put_bytes,
            "gets": store.gets,
            "lists": store.lists,
            "errors": store.errors,
            "isEnded": self._deposed is not None,
            "unreadable": dict(shipping.unreadable),
            "disk": self._life.disk_failure,
            "untaken": dict(self._life.untaken),
            "away": why_away(store),
            "undeleted": store.delete_failure,
            **self._segments.status(),
            "problem": self._sealed() if self._deposed is not None else self._runner.problem,
        }

    def stop(self, wait_s: float = 5.0) -> None:
        """Ship all that is told by now, for so long at most, and end.

        Nothing depends on it.
        """

        async def end() -> None:
            shipping, deadline = self._life.shipping, self._loop.time() + wait_s
            while self._deposed is None and not shipping.is_idle and self._loop.time() < deadline:
                await asyncio.sleep(0.01)
            if not shipping.is_idle:
                logger.warning("the journal ends with %d bytes to ship", shipping.unshipped_bytes)
            self._close()

        self._result_of(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
