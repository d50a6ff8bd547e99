"""Lives over real object stores: a shared directory, and a bucket of an S3 server of this machine."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from pulsar_ray.errors import RemoteStoreRefused, RemoteStoreUnavailable, ServiceUnitNotReady
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.journal.life_runner import LifeRunner
from pulsar_ray.journal.objects import Place, index_key, journal_key
from pulsar_ray.journal.ownership import NOBODY, Ownership
from pulsar_ray.journal.receipts import Receipts
from pulsar_ray.journal.requests import Shipped
from pulsar_ray.journal.shipping import Cut
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.journal.storage.object_store import ObjectStore
from pulsar_ray.journal.store_journal import CountingStore
from pulsar_ray.journal.store_life import Deposed, Serve, StoreLife, seal
from tests.unit.journal.histories import Truth
from tests.unit.journal.history_disks import HEADER, LOG, MANIFEST, OPEN, Copy, Disk
from tests.unit.journal.s3_server import bucket, s3_server

DEADLINE_S = 60
ENTRIES = 300


class Names:
    """What a disk of the histories wants to know of its world."""

    def __init__(self) -> None:
        self._names = itertools.count(1)
        self.now = 0.0
        self.truths: dict[str, Truth] = defaultdict(Truth)

    def name(self) -> int:
        return next(self._names)


class Unreliable:
    """An object store whose requests fail, or whose answers are lost, now and then, or all of them."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner, self.count = inner, itertools.count(1)
        self.loses_every, self.failure = 1 << 30, ""
        self.created = 0
        self._lock = threading.Lock()

    def create(self, key: str, body: bytes) -> bool:
        self._fail(key)
        is_created = self.inner.create(key, body)
        with self._lock:
            self.created += is_created
        if next(self.count) % self.loses_every == 0:
            raise RemoteStoreUnavailable(f"{key}: the answer was lost")
        return is_created

    def get(self, key: str) -> Buffer | None:
        self._fail(key)
        return self.inner.get(key)

    def list(self, prefix: str) -> list[str]:
        self._fail(prefix)
        return self.inner.list(prefix)

    def head(self, key: str) -> int | None:
        return self.inner.head(key)

    def delete(self, keys: tuple[str, ...]) -> None:
        self._fail("")
        self.inner.delete(keys)

    def _fail(self, key: str) -> None:
        if self.failure == "away":
            raise RemoteStoreUnavailable(f"{key}: nobody answers")
        if self.failure:
            raise RemoteStoreRefused(f"{key}: {self.failure}")


class Node:
    """A store's process around one life: it serves partitions, and writes to them."""

    def __init__(self, store: ObjectStore, disk: Disk) -> None:
        disk.life += 1
        self.disk = disk
        cut = Cut(object_bytes=1000, sync_seconds=0.002, seconds=0.02)
        life = StoreLife(disk.store, disk.life, disk, lambda: secrets.token_bytes(8), cut, inline_bytes=500)
        self.receipts: dict[str, Receipts] = {}
        self._loop = asyncio.get_running_loop()
        self.given: list[int] = []
        self.serving: dict[str, int] = {}
        self.deposed: Deposed | None = None
        self.runner = LifeRunner(life, store, self._act, checkpoint_objects=32)
        self.runner.on_advance = self._give
        self.runner.start()

    def _act(self, action: Serve | Deposed) -> None:
        if isinstance(action, Deposed):
            self.deposed = action
            return
        copy = self.disk.copies[action.partition]
        copy.recover()
        ledger = max([copy.term * 65_536, *(ledger for ledger, _ in copy.told(OPEN))]) + 1
        self.serving[action.partition] = ledger
        self._write(action.partition, f"{ledger}-0", HEADER)
        self._write(action.partition, "manifest", MANIFEST.pack(OPEN, ledger, 0))

    def _give(self) -> None:
        life = self.runner.life
        if life.shipping.is_deposed:
            return
        for partition in life.serving & self.receipts.keys():
            for receipt in self.receipts[partition].release(self._loop.time(), life.shipping.shipped):
                receipt()

    def _write(
        self,
        partition: str,
        file: str,
        record: bytes,
        receipt: Callable[[], None] | None = None,
        how: str = "",
    ) -> None:
        data = self.disk.copies[partition].files.setdefault(file, bytearray())
        data += record
        turn = self.runner.life.tell(self._loop.time(), partition, {file: len(data)}, how == "sync")
        if receipt is not None:
            self.receipts.setdefault(partition, Receipts(30.0)).ask(turn, receipt, how)
        self.runner.nudge()

    def publish(self, partition: str, number: int, how: str = "sync") -> None:
        file = f"{self.serving[partition]}-0"
        self._write(partition, file, LOG.pack(number), lambda: self.given.append(number), how)

    async def publish_until(self, condition: Callable[[], object]) -> None:
        async def poll() -> None:
            for number in itertools.count():
                if condition():
                    return
                self.publish("p", number)
                await self.until(lambda number=number: number in self.given[-1:])  # type: ignore[misc]

        await asyncio.wait_for(poll(), DEADLINE_S)

    async def found(self, partition: str) -> None:
        await self.runner.run(self.runner.life.adopt(partition, NOBODY))

    def log(self, partition: str) -> list[int]:
        return [content for _, content in self.disk.copies[partition].log()]

    async def until(self, condition: Callable[[], object]) -> None:
        async def poll() -> None:
            while not condition():
                await asyncio.sleep(0.005)

        await asyncio.wait_for(poll(), DEADLINE_S)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Unreliable:
    if request.param == "s3":
        return Unreliable(bucket(request.getfixturevalue("server"), f"s3://bucket/{tmp_path.name}"))
    return Unreliable(open_object_store(f"file://{tmp_path}/shared"))


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 2 * DEADLINE_S))


async def served(store: ObjectStore, names: Names, partition: str = "p") -> Node:
    node = Node(store, Disk(names))  # type: ignore[arg-type]
    await node.until(lambda: node.runner.life.is_ready)
    await node.found(partition)
    await node.until(lambda: partition in node.serving)
    return node


def test_receipts_come_when_everything_before_is_in_the_store(store: Unreliable) -> None:
    async def test() -> None:
        node = await served(store, Names())
        for number in range(ENTRIES):
            node.publish("p", number)
            if number % 7 == 0:
                await asyncio.sleep(0)
        assert len(node.given) < ENTRIES
        await node.until(lambda: len(node.given) == ENTRIES)
        assert node.given == list(range(ENTRIES))
        node.runner.end()

    run(test)


def test_many_appends_share_an_object(store: Unreliable) -> None:
    async def test() -> None:
        node = await served(store, Names())
        before = store.created
        for number in range(100):
            node.publish("p", number)
        await node.until(lambda: len(node.given) == 100)
        assert store.created - before < 20
        node.runner.end()

    run(test)


def test_another_node_takes_over_all_that_was_confirmed(store: Unreliable) -> None:
    async def test() -> None:
        names = Names()
        lost, other = await served(store, names), Node(store, Disk(names))  # type: ignore[arg-type]
        await other.until(lambda: other.runner.life.is_ready)
        for number in range(ENTRIES):
            lost.publish("p", number)
            if number % 50 == 0:
                await asyncio.sleep(0.01)
        await lost.until(lambda: len(lost.given) >= ENTRIES // 2)
        lost.runner.end()
        confirmed = list(lost.given)

        ownership = Ownership()
        await other.runner.run(ownership.read())
        await other.runner.run(seal(lost.disk.store, ownership, lambda: secrets.token_bytes(8)))
        await other.runner.run(other.runner.life.adopt("p", ownership.owner("p")))
        await other.until(lambda: "p" in other.serving)
        found = other.log("p")
        assert found == list(range(len(found)))
        assert len(found) >= len(confirmed)
        other.publish("p", 1000)
        await other.until(lambda: other.given == [1000])

        back = Node(store, lost.disk)
        await back.until(lambda: back.deposed)
        assert back.deposed == Deposed(is_set_aside=True)
        assert back.serving == {}
        for each in (other, back):
            each.runner.end()

    run(test)


def test_a_restart_goes_on_with_all_that_is_here(store: Unreliable) -> None:
    async def test() -> None:
        first = await served(store, Names())
        for number in range(ENTRIES):
            first.publish("p", number, "async")
        first.runner.end()
        assert first.given == list(range(ENTRIES))
        again = Node(store, first.disk)
        await again.until(lambda: "p" in again.serving)
        assert again.log("p") == list(range(ENTRIES))
        again.publish("p", 1000)
        await again.until(lambda: again.given == [1000])
        again.runner.end()

    run(test)


def test_an_owner_that_was_sealed_confirms_nothing_more(store: Unreliable) -> None:
    async def test() -> None:
        node, ownership = await served(store, Names()), Ownership()
        await node.runner.run(seal(node.disk.store, ownership, lambda: secrets.token_bytes(8)))
        node.publish("p", 1)
        await node.until(lambda: node.deposed)
        assert node.given == []
        node.runner.end()

    run(test)


def test_lost_answers_cost_time_and_nothing_else(store: Unreliable) -> None:
    async def test() -> None:
        node = await served(store, Names())
        store.loses_every = 2
        for number in range(ENTRIES):
            node.publish("p", number)
            if number % 20 == 0:
                await asyncio.sleep(0.005)
        await node.until(lambda: len(node.given) == ENTRIES)
        assert node.given == list(range(ENTRIES))
        assert node.deposed is None
        node.runner.end()

    run(test)


@pytest.mark.parametrize("failure", ["away", "no rights"])
def test_a_store_that_does_not_take_writes_holds_sync_receipts_until_it_does(
    store: Unreliable, failure: str
) -> None:
    async def test() -> None:
        counted = CountingStore(store)
        node = await served(counted, Names())
        store.failure = failure
        node.publish("p", 1, "async")
        assert node.given == [1], "within the bound of what may be lost"
        node.publish("p", 2)
        if failure != "away":
            await node.until(lambda: any(failure in why for _, why in counted.failing.values()))
        store.failure = ""
        await node.until(lambda: node.given == [1, 2])
        await node.until(lambda: not counted.failing)
        node.runner.end()

    run(test)


def test_what_ended_for_good_is_a_problem_whatever_else_is_answered(store: Unreliable) -> None:
    async def test() -> None:
        names = Names()
        disk = Disk(names)  # type: ignore[arg-type]
        store.create(journal_key(disk.store, Place(0, 0)), b"nobody can read this")
        node = Node(store, disk)
        await node.until(lambda: "JournalDamaged" in node.runner.problem)
        await node.runner.run(node.runner.life.ownership.read())
        assert "JournalDamaged" in node.runner.problem
        node.runner.end()

    run(test)


def test_a_checkpoint_that_fails_is_a_problem_until_one_is_written(store: Unreliable) -> None:
    async def test() -> None:
        node = await served(store, Names())
        key = index_key(node.disk.store, 0)
        store.create(key, b"nobody can read this")
        await node.publish_until(lambda: node.runner.problem)
        await node.runner.run(node.runner.life.ownership.read())
        assert key in node.runner.problem
        store.delete((key,))
        await node.publish_until(lambda: not node.runner.problem)
        node.runner.end()

    run(test)


def test_no_index_is_written_before_the_former_life_is_closed() -> None:
    disk = Disk(Names())  # type: ignore[arg-type]
    life = StoreLife(disk.store, 1, disk, lambda: b"nonce")
    for work in (life.put_in_pieces("p"), life.offloading.offload("p", ["1-0"]), life.checkpoint()):
        assert all(request == Shipped(0) for request in work)


def test_whoever_waits_for_a_life_that_ends_learns_it(store: Unreliable) -> None:
    async def test() -> None:
        node = await served(store, Names())
        store.failure = "away"
        node.publish("p", 1)
        leaving = asyncio.ensure_future(node.runner.run(node.runner.life.depart("p")))
        await asyncio.sleep(0)
        node.runner.end()
        with pytest.raises(ServiceUnitNotReady, match="is over"):
            await leaving
        assert node.given == []

    run(test)


def test_a_partition_moves_between_nodes_that_live(store: Unreliable) -> None:
    async def test() -> None:
        names = Names()
        source, target = await served(store, names), Node(store, Disk(names))  # type: ignore[arg-type]
        await target.until(lambda: target.runner.life.is_ready)
        for number in range(ENTRIES):
            source.publish("p", number)
        await source.runner.run(source.runner.life.depart("p"))
        await target.runner.run(target.runner.life.adopt("p", source.runner.life.ownership.owner("p")))
        await target.until(lambda: "p" in target.serving)
        assert target.log("p") == source.given == list(range(ENTRIES))
        for each in (source, target):
            each.runner.end()

    run(test)


def test_journals_shrink_behind_their_index(store: Unreliable) -> None:
    async def test() -> None:
        node = await served(store, Names())
        for number in range(40 * ENTRIES):
            node.publish("p", number)
            if number % ENTRIES == 0:
                await asyncio.sleep(0)
        await node.until(lambda: len(node.given) == 40 * ENTRIES)
        await node.until(lambda: store.list(f"index/{node.disk.store}/"))
        last = node.runner.life.shipping.prefix
        await node.until(lambda: len(store.list(f"journal/{node.disk.store}/")) < last)
        node.runner.end()
        assert isinstance(node.disk.copies["p"], Copy)

    run(test)
