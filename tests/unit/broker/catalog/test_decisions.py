from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.catalog import decisions
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.decided_file import DecidedFile
from pulsar_ray.broker.catalog.decisions import Decisions
from pulsar_ray.errors import (
    BrokerPersistenceError,
    JournalDamaged,
    Moved,
    NotAllowedError,
    RemoteStoreRefused,
    RemoteStoreUnavailable,
)
from pulsar_ray.journal.storage.object_store import ObjectStore
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until

URL = "file:///bucket"
WAIT_S = 30.0


class Bucket:
    """Objects in memory. What is `lost` is carried out, and its answer does not come."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_away = self.is_refusing = False
        self.lost = 0
        self.created: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def _answer(self, answer: Any) -> Any:
        if self.lost:
            self.lost -= 1
            raise RemoteStoreUnavailable("the answer is lost")
        return answer

    def _reach(self) -> None:
        if self.is_away:
            raise RemoteStoreUnavailable("nobody answers")
        if self.is_refusing:
            raise RemoteStoreRefused("no rights")

    def create(self, key: str, body: bytes) -> bool:
        self.gate.wait(WAIT_S)
        self._reach()
        self.created.append(key)
        return bool(self._answer(self.objects.setdefault(key, body) is body))

    def get(self, key: str) -> bytes | None:
        self._reach()
        found = self._answer(self.objects.get(key))
        return None if found is None else bytes(found)

    def list(self, prefix: str) -> list[str]:
        self._reach()
        return sorted(key for key in list(self.objects) if key.startswith(prefix))

    def head(self, key: str) -> int | None:
        found = self.get(key)
        return None if found is None else len(found)

    def delete(self, keys: tuple[str, ...]) -> None:
        self._reach()
        for key in keys:
            self.objects.pop(key, None)


class HangingStore:
    """One controller's way to a bucket, where the first request that `hangs` is held until it is let go.

    With `is_done` it has been carried out by then, and its answer alone is held.
    """

    def __init__(self, bucket: Bucket, hangs: Callable[[str], bool], *, is_done: bool = False) -> None:
        self._bucket, self._hangs, self._is_done = bucket, hangs, is_done
        self.is_hanging, self.may_go_on = threading.Event(), threading.Event()

    def _carried_out(self, method: str, *arguments: Any) -> Any:
        call = partial(getattr(self._bucket, method), *arguments)
        if self.is_hanging.is_set() or not self._hangs(method):
            return call()
        answer = call() if self._is_done else None
        self.is_hanging.set()
        assert self.may_go_on.wait(WAIT_S)
        return answer if self._is_done else call()

    def create(self, key: str, body: bytes) -> bool:
        return bool(self._carried_out("create", key, body))

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._carried_out("get", key)
        return found

    def list(self, prefix: str) -> list[str]:
        return list(self._carried_out("list", prefix))

    def head(self, key: str) -> int | None:
        return self._bucket.head(key)

    def delete(self, keys: tuple[str, ...]) -> None:
        self._carried_out("delete", keys)


class Node:
    """One controller's catalog, in a directory of its own."""

    def __init__(self, directory: Path, store: ObjectStore, copies: int = 1_000) -> None:
        directory.mkdir(exist_ok=True)
        self.path = directory / "meta.sqlite"
        self.ended: list[tuple[str, bool]] = []
        self.decisions = Decisions(self.path, URL, store, decisions_of_a_copy=copies)
        self.decisions.on_end = lambda reason, is_deposed: self.ended.append((reason, is_deposed))

    def serve(self, wait_s: float = WAIT_S, cluster: str = "c") -> Catalog:
        if not self.decisions.begin(cluster, wait_s):
            Catalog.make(self.path, cluster, "first")[0].close()
        self.catalog = Catalog(self.path, self.decisions)
        self.decisions.go_on()
        return self.catalog

    def stored(self) -> set[str]:
        """Return the topics that the file has."""
        file = Catalog(self.path)
        names = {name for name, _ in file.topics_of("public/default")}
        file.close()
        return names


Nodes = Callable[..., Node]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def node(tmp_path: Path, bucket: Bucket) -> Iterator[Nodes]:
    made: list[Node] = []

    def make(name: str, copies: int = 1_000) -> Node:
        made.append(Node(tmp_path / name, bucket, copies))
        return made[-1]

    yield make
    bucket.gate.set()
    for each in made:
        each.decisions.close()


def topic(name: str) -> TopicName:
    return TopicName.parse(name)


def full(*names: str) -> set[str]:
    return {topic(name).full for name in names}


def settle(catalog: Catalog, *partitions: str) -> None:
    asyncio.run(catalog.settled(*partitions))


def create(catalog: Catalog, *names: str) -> None:
    for name in names:
        catalog.create(topic(name), 0, ["store"])
    settle(catalog)


def topics(catalog: Catalog) -> set[str]:
    return {name for name, _ in catalog.topics_of("public/default")}


def test_another_node_has_all_that_was_settled(node: Nodes) -> None:
    first = node("a").serve()
    create(first, "t", "u")
    first.delete(topic("u").full)
    first.policies.put("public/default", {"retention": {"time_minutes": 7}}, 3)
    first.expect_stores(4)
    settle(first)
    second = node("b").serve()
    assert topics(second) == full("t")
    assert second.policies.overrides("public/default")["retention"]["time_minutes"] == 7
    assert second.expected_stores == 4
    assert second.partition(topic("t").full) == first.partition(topic("t").full)
    assert second.last_number == first.last_number
    assert second.identity == first.identity


def test_what_is_changed_is_in_the_object_store_before_the_file(node: Nodes, bucket: Bucket) -> None:
    a = node("a")
    catalog = a.serve()
    create(catalog, "t")
    bucket.gate.clear()
    catalog.create(topic("u"), 0, ["store"])
    assert topics(catalog) == full("t", "u")
    assert a.stored() == full("t")
    bucket.gate.set()
    settle(catalog)
    assert a.stored() == full("t", "u")


def test_changes_that_wait_are_one_object(node: Nodes, bucket: Bucket) -> None:
    catalog = node("a").serve()
    create(catalog, "t")
    before = len(bucket.created)
    bucket.gate.clear()
    for number in range(100):
        catalog.create(topic(f"t{number}"), 0, ["store"])
    bucket.gate.set()
    settle(catalog)
    assert len(bucket.created) - before <= 2


def test_nothing_is_written_where_nothing_changes(node: Nodes, bucket: Bucket) -> None:
    catalog = node("a").serve()
    create(catalog, "t")
    catalog.opened(topic("t").full)
    settle(catalog)
    before = len(bucket.created)
    catalog.opened(topic("t").full)
    catalog.skip_numbers(1)
    catalog.policies.seen_version(0)
    settle(catalog)
    assert len(bucket.created) == before


def test_a_change_that_is_undone_is_never_decided(node: Nodes) -> None:
    catalog = node("a").serve()
    create(catalog, "t")
    with suppress(NotAllowedError), catalog.change_logs.transaction():
        catalog.create(topic("u"), 0, ["store"])
        catalog.create(topic("t"), 0, ["store"])
    create(catalog, "v")
    assert topics(node("b").serve()) == full("t", "v")


def test_answers_that_are_lost_change_nothing(node: Nodes, bucket: Bucket) -> None:
    catalog = node("a").serve()
    bucket.lost = 5
    create(catalog, "t")
    bucket.lost = 2
    create(catalog, "u")
    assert topics(node("b").serve()) == full("t", "u")


def test_a_kill_between_the_object_and_the_file_loses_nothing(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = node("a")
    catalog = a.serve()
    create(catalog, "t")
    taken_in = threading.Event()

    def fail(*_: Any) -> None:
        taken_in.set()
        raise BrokerPersistenceError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(DecidedFile, "take_in", fail)
        catalog.create(topic("u"), 0, ["store"])
        assert taken_in.wait(WAIT_S)
        with pytest.raises(BrokerPersistenceError, match="the disk is full"):
            asyncio.run(a.decisions.settled(wait_s=0.05))
        a.decisions.close()
    assert a.stored() == full("t")
    assert topics(node("a").serve()) == full("t", "u")


def test_what_was_not_decided_is_not_there_after_a_kill(node: Nodes, bucket: Bucket) -> None:
    a = node("a")
    catalog = a.serve()
    create(catalog, "t")
    bucket.is_away = True
    catalog.create(topic("u"), 0, ["store"])
    a.decisions.close()
    bucket.is_away = False
    assert topics(node("a").serve()) == full("t")


def test_of_two_controllers_only_the_later_decides(node: Nodes) -> None:
    a, b = node("a"), node("b")
    first = a.serve()
    create(first, "t")
    second = b.serve()
    first.create(topic("lost"), 0, ["store"])
    with pytest.raises(Moved, match="another controller"):
        settle(first)
    with pytest.raises(Moved):
        first.create(topic("u"), 0, ["store"])
    create(second, "u")
    assert a.ended[0][1]
    assert topics(node("c").serve()) == full("t", "u")


def test_one_that_stood_still_while_its_number_was_deleted_does_not_decide(
    node: Nodes, bucket: Bucket
) -> None:
    first = node("a", copies=3).serve()
    create(first, "t")
    second = node("b", copies=3).serve()
    for number in range(10):
        create(second, f"t{number}")
    wait_until(lambda: len(bucket.list("decisions/")) < 8, WAIT_S, "decisions are deleted")
    first.create(topic("lost"), 0, ["store"])
    with pytest.raises(Moved):
        settle(first)
    assert topics(node("c").serve()) == full("t", *(f"t{number}" for number in range(10)))


def close_while_hanging(a: Node, store: HangingStore, monkeypatch: pytest.MonkeyPatch) -> threading.Thread:
    """Close a controller one of whose requests hangs, and return its thread."""
    assert store.is_hanging.wait(WAIT_S)
    thread = a.decisions._thread
    assert thread is not None
    with monkeypatch.context() as patch:
        patch.setattr(decisions, "CLOSE_S", 0.01)
        a.decisions.close()
    assert thread.is_alive()
    return thread


def test_what_a_closed_controller_had_on_its_way_replaces_nothing_that_the_next_one_decided(
    node: Nodes, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_due = threading.Event()
    store = HangingStore(bucket, lambda method: method == "create" and is_due.is_set(), is_done=True)
    a = Node(tmp_path / "a", store)
    create(a.serve(), "t")
    is_due.set()
    a.catalog.create(topic("u"), 0, ["store"])
    thread = close_while_hanging(a, store, monkeypatch)
    again = node("a")
    catalog = again.serve()
    catalog.delete(topic("u").full)
    settle(catalog)
    store.may_go_on.set()
    thread.join(WAIT_S)
    assert again.stored() == full("t")
    create(catalog, "v")
    again.decisions.close()
    assert topics(node("a").serve()) == full("t", "v")


def test_a_closed_controller_that_learns_late_that_it_was_deposed_does_not_end_the_next_one(
    node: Nodes, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "LOOK_S", 0.01)
    is_due = threading.Event()
    store = HangingStore(bucket, lambda method: method == "get" and is_due.is_set())
    a = Node(tmp_path / "a", store)
    create(a.serve(), "t")
    is_due.set()
    thread = close_while_hanging(a, store, monkeypatch)
    catalog = node("a").serve()
    store.may_go_on.set()
    thread.join(WAIT_S)
    assert not a.ended, "the process of both would end"
    create(catalog, "u")
    assert topics(node("b").serve()) == full("t", "u")


def test_a_closed_controller_that_has_begun_late_does_not_end_the_next_one(
    node: Nodes, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        each = node(name)
        create(each.serve(), name)
        each.decisions.close()
    bucket.created.clear()
    store = HangingStore(bucket, lambda method: method == "get" and len(bucket.created) > 1)
    a = Node(tmp_path / "a", store)
    assert topics(a.serve(wait_s=0.1)) == full("a")
    thread = close_while_hanging(a, store, monkeypatch)
    catalog = node("a").serve()
    store.may_go_on.set()
    thread.join(WAIT_S)
    assert not a.ended, "the process of both would end"
    create(catalog, "u")
    assert topics(node("c").serve()) == full("a", "b", "u")


@pytest.mark.parametrize("number", range(23))
def test_no_request_of_a_closed_controller_that_comes_late_changes_what_the_next_one_decides(
    node: Nodes, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each request of a controller that begins, decides and copies is held once."""
    monkeypatch.setattr(decisions, "LOOK_S", 0.01)
    before = node("a")
    create(before.serve(), "t")
    before.decisions.close()
    requests = count()
    store = HangingStore(bucket, lambda _: next(requests) == number)
    a = Node(tmp_path / "a", store, copies=2)
    catalog = a.serve(wait_s=0.05)
    for name in ("u", "v", "w"):
        with suppress(RemoteStoreUnavailable):
            catalog.create(topic(name), 0, ["store"])
            asyncio.run(a.decisions.settled(wait_s=0.05))
    thread = close_while_hanging(a, store, monkeypatch)
    again = node("a", copies=2)
    catalog = again.serve()
    for name in topics(catalog):
        catalog.delete(name)
        settle(catalog)
    create(catalog, "x", "y")
    store.may_go_on.set()
    thread.join(WAIT_S)
    create(catalog, "z")
    assert not a.ended
    assert again.stored() == topics(node("b").serve()) == full("x", "y", "z")


def test_a_copy_stands_for_what_is_before_it(node: Nodes, bucket: Bucket) -> None:
    a = node("a", copies=3)
    catalog = a.serve()
    names = [f"t{number}" for number in range(20)]
    for name in names:
        create(catalog, name)
    catalog.delete(topic("t3").full)
    settle(catalog)
    names.remove("t3")
    assert len(bucket.list("decisions/")) <= 5
    assert len(bucket.list("copies/")) == 1
    assert topics(node("b").serve()) == full(*names)
    a.decisions.close()
    assert topics(node("a").serve()) == full(*names)


def test_a_file_of_a_former_time_is_made_anew(node: Nodes, tmp_path: Path) -> None:
    a = node("a", copies=2)
    catalog = a.serve()
    create(catalog, "t")
    before = a.path.read_bytes()
    for number in range(6):
        create(catalog, f"t{number}")
    a.decisions.close()
    for name in ("-wal", "-shm"):
        a.path.with_name(a.path.name + name).unlink(missing_ok=True)
    a.path.write_bytes(before)
    assert topics(node("a").serve()) == full("t", *(f"t{number}" for number in range(6)))


def test_a_catalog_from_before_there_was_an_object_store_is_taken_in(node: Nodes) -> None:
    a = node("a")
    old = Catalog.make(a.path, "c", "first")[0]
    old.create(topic("old"), 3, ["store"])
    old.close()
    create(a.serve(), "t")
    assert topics(node("b").serve()) == full("old", "t")


def test_a_catalog_that_was_made_anew_without_the_object_store_counts(node: Nodes) -> None:
    a = node("a")
    create(a.serve(), "t")
    a.decisions.close()
    b = node("b")
    Catalog.make(b.path, "c", "second", 1 << 31, ["first"])[0].close()
    create(b.serve(), "u")
    assert topics(node("c").serve()) == full("u")


def test_while_the_object_store_is_away_the_catalog_is_read_and_nothing_decided(
    node: Nodes, bucket: Bucket
) -> None:
    a = node("a")
    create(a.serve(), "t")
    a.decisions.close()
    bucket.is_away = True
    again = node("a").serve(wait_s=0.1)
    assert topics(again) == full("t")
    settle(again)
    with pytest.raises(RemoteStoreUnavailable, match="nobody answers"):
        again.create(topic("u"), 0, ["store"])
    assert topics(again) == full("t")
    bucket.is_away = False

    def is_taken() -> bool:
        try:
            create(again, "u")
        except RemoteStoreUnavailable:
            return False
        return True

    wait_until(is_taken, WAIT_S, "decisions are taken again")
    assert topics(node("b").serve()) == full("t", "u")


def test_rights_that_are_taken_away_are_waited_for_as_an_object_store_that_is_away(
    node: Nodes, bucket: Bucket
) -> None:
    a = node("a")
    create(a.serve(), "t")
    a.decisions.close()
    bucket.is_refusing = True
    again = node("a").serve(wait_s=0.1)
    assert topics(again) == full("t")
    with pytest.raises(RemoteStoreUnavailable, match="no rights"):
        again.create(topic("u"), 0, ["store"])


def test_an_answer_waits_for_its_own_partitions_alone(node: Nodes, bucket: Bucket) -> None:
    catalog = node("a").serve()
    create(catalog, "t")
    bucket.gate.clear()
    catalog.create(topic("u"), 0, ["store"])
    settle(catalog, topic("t").full)
    with pytest.raises(RemoteStoreUnavailable):
        asyncio.run(catalog._decisions.settled([topic("u").full], wait_s=0.05))  # type: ignore[union-attr]
    bucket.gate.set()
    settle(catalog, topic("u").full)


def test_a_node_without_a_file_waits_for_the_object_store(node: Nodes, bucket: Bucket) -> None:
    bucket.is_away = True
    with pytest.raises(RemoteStoreUnavailable):
        node("a").decisions.begin("c", wait_s=0.1)


def test_one_that_served_an_old_file_ends_once_it_sees_later_decisions(node: Nodes, bucket: Bucket) -> None:
    a = node("a")
    create(a.serve(), "t")
    a.decisions.close()
    create(node("b").serve(), "u")
    bucket.is_away = True
    late = node("a")
    late.serve(wait_s=0.1)
    bucket.is_away = False
    wait_until(lambda: bool(late.ended), WAIT_S, "it ends")
    assert not late.ended[0][1]
    assert topics(node("a").serve()) == full("t", "u")


def test_where_all_decisions_were_deleted_the_file_is_the_first_copy_again(
    node: Nodes, bucket: Bucket
) -> None:
    a = node("a")
    create(a.serve(), "t", "u")
    a.decisions.close()
    bucket.delete(
        tuple(name for prefix in ("decisions/", "copies/", "copied/") for name in bucket.list(prefix))
    )
    again = node("a").serve()
    create(again, "v")
    assert topics(node("b").serve()) == full("t", "u", "v")


def test_what_belongs_to_another_cluster_is_left_alone(node: Nodes) -> None:
    catalog = node("a").serve()
    create(catalog, "t")
    with pytest.raises(RemoteStoreRefused, match="of cluster c"):
        node("b").serve(cluster="other")
    create(catalog, "u")


@pytest.mark.parametrize("kind", ["decisions", "copied", "copies"])
def test_an_object_that_is_missing_or_damaged_is_named(node: Nodes, bucket: Bucket, kind: str) -> None:
    catalog = node("a").serve()
    create(catalog, "t")
    create(catalog, "u")
    name = bucket.list(f"{kind}/")[0 if kind != "decisions" else 1]
    kept = bucket.objects[name]
    bucket.objects[name] = kept[:-1] + bytes([kept[-1] ^ 1])
    with pytest.raises(JournalDamaged, match=name):
        node("b").serve()
    if kind != "copies":  # nobody can tell an older copy from the newest one
        del bucket.objects[name]
        with pytest.raises(JournalDamaged, match=name):
            node("c").serve()
    bucket.objects[name] = kept
    assert topics(node("d").serve()) == full("t", "u")
