"""Fetching a partition from executors that die and start anew, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import ray
from ray.exceptions import ActorUnavailableError, OutOfDiskError, RayTaskError

from pulsar_ray.errors import ObjectStoreFull, ServiceUnitNotReady
from pulsar_ray_spark import executor_blocks
from pulsar_ray_spark.executor_blocks import REFUSALS, ExecutorBlock

TABLE = pa.table({"value": [b"a"]})
BLOCK = ExecutorBlock(7, 3, "{}", "spark://driver", "1")


def stream() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return bytes(sink.getvalue())


def restarting() -> Any:
    raise ActorUnavailableError("restarting", b"0" * 16)


def failing() -> Any:
    failed: Callable[..., Exception] = RayTaskError
    raise failed("fetch", "java.lang.NullPointerException", RuntimeError("java"))


def full() -> Any:
    failed: Callable[..., Any] = RayTaskError
    raise failed("fetch", "ray::fetch() (pid=7, ip=10.0.0.2)", OutOfDiskError()).as_instanceof_cause()


class Executor:
    """One executor; `states` are what it does when it is asked, the last of them from then on."""

    def __init__(self, *states: tuple[Callable[[], Any], Callable[[], Any]]) -> None:
        self._states = list(states)
        self.fetches = 0

    def _state(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def handle(self) -> Any:
        def look(_rdd: int, partitions: int) -> Callable[[], Any]:
            assert partitions == 0
            looks, self._fetch = self._state()
            return looks

        def fetch(*_: Any) -> Callable[[], Any]:
            self.fetches += 1
            return self._fetch

        return SimpleNamespace(
            getBlockLocations=SimpleNamespace(remote=look), getRDDPartition=SimpleNamespace(remote=fetch)
        )


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> dict[str, Executor]:
    found: dict[str, Executor] = {}
    worker = SimpleNamespace(set_load_code_from_local=lambda _: None)
    monkeypatch.setattr(ray._private.worker, "global_worker", worker)
    monkeypatch.setattr(ray.util, "list_named_actors", lambda: ["another", *found])
    monkeypatch.setattr(ray, "get_actor", lambda name: found[name].handle())
    monkeypatch.setattr(ray, "get", lambda call, timeout: call())
    monkeypatch.setattr(executor_blocks, "AGAIN_S", 0.0)
    return found


def test_an_executor_that_starts_anew_is_waited_for_and_asked_once_it_serves(
    executors: dict[str, Executor],
) -> None:
    serves = (list, stream)
    executor = Executor((restarting, stream), (failing, stream), (list, restarting), (list, failing), serves)
    executors["raydp-executor-0"] = executor
    assert BLOCK().equals(TABLE)
    assert executor.fetches == 3, "not while Spark has not started it"


def test_another_executor_has_the_rows_meanwhile(executors: dict[str, Executor]) -> None:
    executors["raydp-executor-0"] = Executor((list, stream))
    executors["raydp-executor-1"] = Executor((restarting, stream))
    assert BLOCK().equals(TABLE)


def test_rows_that_no_executor_can_give_are_an_error_that_says_what_to_do(
    executors: dict[str, Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServiceUnitNotReady, match=r"there are none.*Write the batch again"):
        BLOCK()
    broken = executors["raydp-executor-0"] = Executor((list, failing))
    with pytest.raises(ServiceUnitNotReady, match=r"partition 3 .*raydp-executor-0: .*Pointer"):
        BLOCK()
    assert broken.fetches == REFUSALS
    executors["raydp-executor-0"] = Executor((restarting, stream))
    monkeypatch.setattr(executor_blocks, "FETCH_TIMEOUT_S", 0.0)
    with pytest.raises(ServiceUnitNotReady, match="restarting"):
        BLOCK()


def test_rows_that_find_no_room_in_the_object_store_are_fetched_again_for_a_while(
    executors: dict[str, Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    executors["raydp-executor-0"] = Executor(*[(list, full)] * 2 * REFUSALS, (list, stream))
    assert BLOCK().equals(TABLE)
    executors["raydp-executor-0"] = Executor((list, full))
    monkeypatch.setattr(executor_blocks, "FETCH_TIMEOUT_S", 0.0)
    with pytest.raises(ObjectStoreFull, match=r"node 10\.0\.0\.2 is full.*more `tasks`"):
        BLOCK()
