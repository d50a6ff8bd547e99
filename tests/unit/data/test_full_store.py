"""Ray's errors of a full object store, and how long work is tried again after them."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError, RayTaskError, WorkerCrashedError

from pulsar_ray.data import failing_actors, full_store
from pulsar_ray.data.full_store import NamingFullStores, store_full, tried_while_full
from pulsar_ray.data.reading import readers
from pulsar_ray.errors import InvalidConfiguration, ObjectStoreFull, Timeout
from pulsar_ray.transport import this_ray

REMEDY = "read fewer columns"


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [
        {
            "NodeID": f"id-{number}",
            "Alive": number != 1,
            "NodeManagerAddress": f"10.0.0.{number}",
            "NodeManagerHostname": f"host-{number}",
            "Resources": {"object_store_memory": 80.0 * 2**20},
        }
        for number in range(3)
    ]
    monkeypatch.setattr(ray, "nodes", lambda: known)
    monkeypatch.setattr(this_ray, "node_id", lambda: "id-2")


def of_task(cause: Exception, address: str = "10.0.0.2") -> RayError:
    made_of: Any = RayTaskError
    failed: RayError = made_of("read", f"ray::read() (pid=7, ip={address})", cause).as_instanceof_cause()
    return failed


@pytest.mark.parametrize(
    "cause", [OutOfDiskError(), ObjectStoreFullError()], ids=lambda cause: type(cause).__name__
)
def test_a_full_store_is_named_with_its_node_and_the_remedy(cause: Exception) -> None:
    found = {
        "host-2 (10.0.0.2), of 80 MiB": store_full(of_task(cause), "reading t", REMEDY),
        "host-0 (10.0.0.0), of 80 MiB": store_full(cause, "reading t", REMEDY, "id-0"),
        "node id-1 is full": store_full(cause, "reading t", REMEDY, "id-1"),
        "node 10.0.0.9 is full": store_full(of_task(cause, "10.0.0.9"), "reading t", REMEDY),
        "host-2 (10.0.0.2), of 80 MiB, ": store_full(cause, "reading t", REMEDY),
    }
    for where, error in found.items():
        assert error is not None
        text = str(pickle.loads(pickle.dumps(error)))
        for part in (where, "reading t: ", "Read fewer columns", "object_store_memory"):
            assert part in text
        assert ("spills to has no room" in text) == isinstance(cause, OutOfDiskError)
    assert ObjectStoreFull.retriable


@pytest.mark.parametrize(
    "other",
    [
        WorkerCrashedError(),
        of_task(ValueError("no")),
        of_task(InvalidConfiguration("no")),
        OSError(28, "disk"),
    ],
    ids=lambda other: type(other).__name__,
)
def test_other_errors_are_no_full_store(other: Exception) -> None:
    assert store_full(other, "reading t", REMEDY) is None
    with pytest.raises(type(other)), NamingFullStores("reading t", REMEDY):
        raise other


def test_processes_and_blocks_that_find_a_full_store_say_so() -> None:
    full = of_task(OutOfDiskError())
    error = failing_actors.own_error(full, "that sent a part", "write in more tasks")
    assert isinstance(error, ObjectStoreFull)
    assert "the process that sent a part: " in error.text
    with pytest.raises(ObjectStoreFull, match="host-2"), NamingFullStores("fetching", REMEDY):
        raise full


class Step:
    """Finds the store full so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.pauses: list[float] = []
        self.stops_at: int | None = None

    def __call__(self) -> str:
        if len(self.pauses) < self.failures:
            raise ObjectStoreFull("full")
        return "done"

    def pause(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return len(self.pauses) == self.stops_at


def test_work_is_tried_again_in_growing_pauses_until_there_is_room() -> None:
    step = Step(6)
    assert tried_while_full(step, step.pause) == "done"
    assert step.pauses == [1, 2, 4, 8, 10, 10]


def test_what_never_has_room_ends_with_the_error() -> None:
    step = Step(1000)
    with pytest.raises(ObjectStoreFull):
        tried_while_full(step, step.pause)
    assert full_store.PATIENCE_S <= sum(step.pauses) < full_store.PATIENCE_S + 10


def test_work_that_is_stopped_is_not_tried_again() -> None:
    step = Step(3)
    step.stops_at = 2
    with pytest.raises(ObjectStoreFull):
        tried_while_full(step, step.pause)
    assert len(step.pauses) == 2


class Block:
    """Takes room in the store for as long as somebody refers to it."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Let nothing but references keep objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def fetch(_blocks: list[Block]) -> None:
    with NamingFullStores("fetching", REMEDY):
        raise of_task(OutOfDiskError())


def read(blocks: list[Block]) -> None:
    work: Any = SimpleNamespace(read_range=SimpleNamespace(topic="t", node_id="id-0"))
    reading: Any = SimpleNamespace(work=work, blocks=blocks)
    readers._blocks_of(reading)


@pytest.mark.parametrize("work", [fetch, read])
def test_what_failed_work_had_in_the_store_is_given_up_while_it_pauses(
    work: Callable[[list[Block]], None], no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(_block: Any) -> None:
        raise of_task(OutOfDiskError())

    monkeypatch.setattr(ray, "get", get)
    had: list[weakref.ref[Block]] = []
    kept: list[int] = []

    def step() -> None:
        blocks = [Block() for _ in range(3)]
        had.extend(map(weakref.ref, blocks))
        work(blocks)

    def pause(_seconds: float) -> bool:
        kept.append(sum(block() is not None for block in had))
        return len(kept) == 2

    with pytest.raises(ObjectStoreFull):
        tried_while_full(step, pause)
    assert kept == [0, 0]


@pytest.mark.parametrize("work", [fetch, read])
def test_what_failed_work_had_in_the_store_goes_with_its_error(
    work: Callable[[list[Block]], None], no_collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(_block: Any) -> None:
        raise of_task(OutOfDiskError())

    monkeypatch.setattr(ray, "get", get)
    blocks = [Block()]
    had = weakref.ref(blocks[0])

    def failed(blocks: list[Block]) -> None:
        with pytest.raises(ObjectStoreFull):
            work(blocks)

    failed(blocks)
    del blocks
    assert had() is None


def test_other_errors_are_raised_at_once() -> None:
    def step() -> None:
        raise Timeout("slow")

    with pytest.raises(Timeout):
        tried_while_full(step, lambda _: pytest.fail("paused"))
