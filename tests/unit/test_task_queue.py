"""Tasks of Ray Serve on a broker in this process: their ends are told whatever they do."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import InvalidMessage, MessageTooBig
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker

pytest.importorskip("fastapi")

from ray.serve.schema import TaskProcessorConfig

from pulsar_ray.serve import SUBSCRIPTION, TaskQueue

LONG = "x" * (6 << 20)
ENDS = ("SUCCESS", "FAILURE", "REVOKED")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, "socket", seed=1)
    yield broker
    broker.close()


@pytest.fixture
def queue(broker: Broker) -> Iterator[TaskQueue]:
    """A queue whose tasks are not tried again, as a replica with one thread has it."""
    config = TaskProcessorConfig(
        queue_name="jobs", adapter=TaskQueue, adapter_config={"retry_delay_seconds": 0.05}, max_retries=0
    )
    queue = TaskQueue(config)
    queue._client = broker.client()
    yield queue
    queue.stop_consumer()


def end_of(queue: TaskQueue, handler: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Run a task; returns its status and what is told of its end."""
    queue.register_task_handle(handler, handler.__name__)
    if not queue._threads:
        queue.start_consumer()
    task = queue.enqueue_task_sync(handler.__name__, arguments)
    wait_until(lambda: queue.get_task_status_sync(task.id).status in ENDS, timeout_s=20)
    found = queue.get_task_status_sync(task.id)
    return found.status, found.result


def double(number: int) -> int:
    return 2 * number


def leave() -> None:
    sys.exit(3)


async def give_up() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(("ending", "told"), [(leave, "SystemExit: 3"), (give_up, "CancelledError: ")])
def test_a_task_that_ends_its_thread_has_failed_and_later_ones_run(
    queue: TaskQueue, ending: Callable[..., Any], told: str
) -> None:
    assert end_of(queue, ending) == ("FAILURE", told)
    assert end_of(queue, double, 4) == ("SUCCESS", 8)


def test_a_result_that_no_message_takes_is_a_failure(queue: TaskQueue, broker: Broker) -> None:
    def much() -> str:
        return LONG

    status, told = end_of(queue, much)
    assert (status, told.partition(":")[0]) == ("FAILURE", MessageTooBig.__name__)
    topic = "persistent://public/default/jobs"
    wait_until(lambda: not broker.admin().topics.stats(topic)["subscriptions"][SUBSCRIPTION]["msgBacklog"])
    assert "public/default/jobs-failed" in "".join(broker.admin().topics.list())


def test_the_long_text_of_an_error_is_cut(queue: TaskQueue) -> None:
    def fail() -> None:
        raise RuntimeError(LONG)

    status, told = end_of(queue, fail)
    assert (status, told[:16]) == ("FAILURE", "RuntimeError: xx")


def test_a_task_whose_end_cannot_be_told_comes_again(
    queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, failures = queue._tell, [RuntimeError("the disk is full")]

    def told(task_id: str, status: str, result: Any) -> None:
        if status == "SUCCESS" and failures:
            raise failures.pop()
        tell(task_id, status, result)

    monkeypatch.setattr(queue, "_tell", told)
    assert end_of(queue, double, 4) == ("SUCCESS", 8)
    assert not failures


def test_a_replica_begins_at_once_while_others_end_tasks_all_the_time(
    queue: TaskQueue, broker: Broker
) -> None:
    others = broker.client().create_producer("jobs-results")
    is_over = threading.Event()

    def tell_of_others() -> None:
        while not is_over.wait(0.02):
            others.send(
                json.dumps({"status": "STARTED", "result": None, "at": 0}).encode(), partition_key="1"
            )

    telling = threading.Thread(target=tell_of_others)
    telling.start()
    try:
        assert end_of(queue, double, 4) == ("SUCCESS", 8)
    finally:
        is_over.set()
        telling.join()


@pytest.mark.parametrize("content", [b"7", b"{}", b"no JSON"])
def test_what_is_no_state_of_a_task_is_passed_over(queue: TaskQueue, broker: Broker, content: bytes) -> None:
    broker.client().create_producer("jobs-results").send(content, partition_key="1")
    assert end_of(queue, double, 4) == ("SUCCESS", 8)
    assert queue.get_task_status_sync("1").status == "PENDING"


def test_tasks_without_ids_do_not_pass_for_each_other(queue: TaskQueue, broker: Broker) -> None:
    ran: list[int] = []
    queue.register_task_handle(ran.append, "note")
    queue.start_consumer()
    producer = broker.client().create_producer("jobs")

    def ends() -> int:
        known = list(queue._followed_results()._states.values())
        return sum(state["status"] == "SUCCESS" for _, state in known)

    for number in range(2):
        content = json.dumps({"args": [number], "kwargs": {}}).encode()
        producer.send(content, properties={"task_name": "note"})
        wait_until(lambda: len(ran) == number + 1, timeout_s=20)  # noqa: B023
        wait_until(lambda: ends() == number + 1, timeout_s=20)  # noqa: B023


@pytest.mark.parametrize("arguments", [{"args": "a.png"}, {"args": {"path": "a.png"}}, {"kwargs": ["a.png"]}])
def test_arguments_that_are_no_list_or_dict_are_refused(queue: TaskQueue, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="args as a list or tuple, and kwargs as a dict"):
        queue.enqueue_task_sync("shrink", **arguments)
