"""The durable queue does what `ray.util.queue.Queue` does, and keeps its items through every crash."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import ray.util.queue

from pulsar_ray.client.client import Client
from pulsar_ray.errors import AlreadyClosed
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.queue import SUBSCRIPTION, Empty, Full, Queue
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name
from tests.conformance.broker import Broker

Opened = Callable[..., Queue]


@pytest.fixture
def opened(broker: Broker, client: Client) -> Opened:
    """Opens a handle of one queue, with a client of its own if asked for."""
    topic = broker.topic()

    def open_queue(maxsize: int = 0, *, own_client: bool = False) -> Queue:
        return Queue(maxsize, name=topic, client=broker.client() if own_client else client)

    return open_queue


def test_items_come_in_the_order_in_which_they_were_put(opened: Opened) -> None:
    queue = opened()
    items = [1, "two", None, {"three": [3.0]}, b"4"]
    for item in items:
        queue.put(item)
    assert (len(queue), queue.qsize(), queue.empty(), queue.full()) == (5, 5, False, False)
    assert [queue.get() for _ in items] == items
    assert queue.empty()


def test_an_empty_queue_raises_the_error_of_rays_queue(opened: Opened) -> None:
    queue = opened()
    for take in (queue.get_nowait, lambda: queue.get(timeout=0.1), lambda: queue.get(timeout=0)):
        with pytest.raises(ray.util.queue.Empty):
            take()
    with pytest.raises(ray.util.queue.Empty, match="Cannot get 1 items from queue of size 0"):
        queue.get_nowait_batch(1)


def test_a_getter_that_gave_up_keeps_nothing_from_another(opened: Opened) -> None:
    queue, other = opened(), opened(own_client=True)
    with pytest.raises(Empty):
        queue.get(timeout=0.1)
    for number in range(3):
        other.put(number)
    assert [other.get(timeout=20) for _ in range(3)] == [0, 1, 2]


def test_a_busy_getter_holds_one_item_and_no_more(opened: Opened) -> None:
    busy, other = opened(), opened(own_client=True)
    for number in range(3):
        busy.put(number)
    assert busy.get(timeout=20) == 0
    assert [other.get(timeout=20) for _ in range(2)] == [1, 2]


def test_a_full_queue_refuses_or_waits(opened: Opened) -> None:
    queue = opened(2)
    queue.put_nowait_batch([0, 1])
    assert queue.full()
    with pytest.raises(ray.util.queue.Full):
        queue.put_nowait(2)
    with pytest.raises(Full):
        queue.put(2, timeout=0.1)
    with pytest.raises(Full, match="Cannot add 2 items to queue of size 2 and maxsize 2"):
        queue.put_nowait_batch([2, 3])
    waiting = threading.Thread(target=queue.put, args=(2,))
    waiting.start()
    assert queue.get(timeout=20) == 0
    waiting.join(20)
    assert [queue.get(timeout=20) for _ in range(2)] == [1, 2]


def test_batches_come_whole_or_not_at_all(opened: Opened) -> None:
    queue = opened()
    queue.put_nowait_batch(range(10))
    assert queue.get_nowait_batch(4) == [0, 1, 2, 3]
    with pytest.raises(Empty, match="Cannot get 7 items from queue of size 6"):
        queue.get_nowait_batch(7)
    assert queue.get_nowait_batch(0) == []
    assert queue.get_nowait_batch(6) == [4, 5, 6, 7, 8, 9]
    queue.put_nowait_batch([])
    assert queue.empty()


def test_every_item_goes_to_one_of_many_getters(opened: Opened) -> None:
    queues = [opened(own_client=True) for _ in range(2)]
    queues[0].put_nowait_batch(range(60))
    got: list[int] = []

    def work(queue: Queue) -> None:
        while len(got) < 60:
            with suppress(Empty):
                got.append(queue.get(timeout=0.5))

    threads = [threading.Thread(target=work, args=(queue,)) for queue in queues * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(60))


def test_items_survive_the_death_of_partition_and_dispatcher(broker: Broker, opened: Opened) -> None:
    queue = opened()
    for number in range(4):
        queue.put(number)
    assert queue.get(timeout=20) == 0
    broker.cluster.kill(partition_name(queue.topic))
    broker.cluster.kill(dispatcher_name(queue.topic, SUBSCRIPTION, durable=True))
    assert [queue.get(timeout=20) for _ in range(3)] == [1, 2, 3]
    assert queue.empty()


def test_what_a_getter_held_when_it_ended_comes_to_another(broker: Broker, opened: Opened) -> None:
    queue = opened()
    queue.put("work")
    client = broker.client()
    getter = client.subscribe(queue.topic, SUBSCRIPTION, ConsumerType.Shared, receiver_queue_size=0)
    getter.receive()
    assert not queue.empty()
    getter.close()
    assert queue.get(timeout=20) == "work"


class Fragile:
    """An item that can be loaded where `is_known` says so alone, as one whose module is not everywhere."""

    is_known = False

    def __reduce__(self) -> tuple[Callable[[], str], tuple[()]]:
        return load_fragile, ()


def load_fragile() -> str:
    if not Fragile.is_known:
        raise ImportError("no module named fragile")
    return "fragile"


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Fragile:
    monkeypatch.setattr(Fragile, "is_known", False)
    monkeypatch.setattr("pulsar_ray.queue._FAILED_COMES_AGAIN_MS", 0)
    return Fragile()


def test_a_batch_with_an_item_that_cannot_be_loaded_takes_none(
    opened: Opened, fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened()
    queue.put_nowait_batch([*range(9), fragile])
    with pytest.raises(ImportError, match="fragile"):
        queue.get_nowait_batch(10)
    assert queue.size() == 10
    monkeypatch.setattr(Fragile, "is_known", True)
    got = [opened(own_client=True).get(timeout=20) for _ in range(10)]
    assert sorted(map(str, got)) == [*map(str, range(9)), "fragile"]


def test_an_item_that_cannot_be_loaded_here_comes_to_who_can(
    opened: Opened, fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = opened()
    queue.put(fragile)

    async def get() -> None:
        await queue.get_async(timeout=20)

    for take in (lambda: queue.get(timeout=20), lambda: asyncio.run(get()), lambda: queue.get(timeout=20)):
        with pytest.raises(ImportError, match="fragile"):
            take()
        assert queue.size() == 1
    monkeypatch.setattr(Fragile, "is_known", True)
    assert queue.get(timeout=20) == "fragile"
    assert queue.empty()


def test_one_that_can_be_loaded_nowhere_becomes_a_dead_letter(
    opened: Opened, client: Client, fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.queue.MAX_FAILURES", 2)
    queue = opened()
    queue.put_nowait_batch([fragile, "next"])
    for _ in range(3):
        with pytest.raises(ImportError, match="fragile"):
            queue.get(timeout=20)
    assert queue.get(timeout=20) == "next"
    letters = Queue(name=f"{queue.topic}-queue-DLQ", client=client)
    monkeypatch.setattr(Fragile, "is_known", True)
    assert letters.get(timeout=20) == "fragile"
    wait_until(queue.empty, what="the letter has left its queue")


def test_items_are_made_bytes_by_the_serializer_that_is_given(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    queue = Queue(name=topic, client=client, serializer=json)
    queue.put({"user": "Ada"})
    assert broker.stored(topic) == [b'{"user": "Ada"}']
    handle, arguments = queue.__reduce__()
    assert handle(*arguments).get(timeout=20) == {"user": "Ada"}
    with pytest.raises(TypeError, match="JSON"):
        queue.put(object())


def test_nothing_is_unpickled_where_another_serializer_is_given(
    broker: Broker, client: Client, fragile: Fragile
) -> None:
    topic = broker.topic()
    queue = Queue(name=topic, client=client, serializer=json)
    client.create_producer(topic).send(pickle.dumps(fragile))
    with pytest.raises(ValueError, match="utf-8"):
        queue.get(timeout=20)


def test_a_queue_without_a_name_goes_when_nobody_has_a_handle(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    if transport == "sleepy":
        pytest.skip("its partitions are asleep before they can report")
    deletions = "pulsar_ray.broker.partition.backlog.due_deletions"
    monkeypatch.setattr("pulsar_ray.managed_ledger.store.wake_times.LEAST_SLACK_MS", 0)
    monkeypatch.setattr(f"{deletions}.REPORT_AGAIN_MS", 500)
    monkeypatch.setattr(f"{deletions}.MINUTE_MS", 1000)
    monkeypatch.setattr("pulsar_ray.broker.catalog.wanted_topics.WANTED_MS", 200)
    monkeypatch.setattr("pulsar_ray.queue.NAMELESS_UNUSED_MINUTES", 1)
    monkeypatch.setattr("pulsar_ray.queue._THEN_DELETED_AFTER_S", 1)
    admin = broker.admin()
    queue, named = Queue(client=client), Queue(name=broker.topic(), client=client)
    queue.put("left behind")
    policy = admin.topics.policies.get(queue.topic, "inactive_topic_policies").value
    assert policy["inactive_topic_delete_mode"] == "delete_when_no_subscriptions"
    until = time.monotonic() + 4
    wait_until(lambda: time.monotonic() > until, what="longer than it would stay without a handle")
    assert queue.size() == 1
    queue.shutdown()
    named.shutdown()
    wait_until(lambda: broker.cluster.put_to_sleep(queue.topic), what="its dispatcher has gone")

    def is_deleted() -> bool:
        return queue.topic not in admin.topics.list("public/default") or broker.cluster.remove_unused(
            queue.topic
        )

    wait_until(is_deleted, what="it is deleted")
    assert named.topic in admin.topics.list("public/default")


def test_coroutines_put_and_get(opened: Opened) -> None:
    queue = opened(2)

    async def work() -> list[int]:
        with pytest.raises(Empty):
            await queue.get_async(block=False)
        with pytest.raises(Empty):
            await queue.get_async(timeout=0.1)
        gone = asyncio.create_task(queue.get_async())
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        await queue.put_async(0)
        await queue.put_async(1)
        with pytest.raises(Full):
            await queue.put_async(2, block=False)
        with pytest.raises(Full):
            await queue.put_async(2, timeout=0.1)
        putting = asyncio.create_task(queue.put_async(2))
        got = [await queue.get_async(timeout=20) for _ in range(3)]
        await putting
        return got

    assert asyncio.run(work()) == [0, 1, 2]


def test_a_getter_that_is_interrupted_keeps_nothing_from_another(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = opened(), opened(own_client=True)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for take in (queue.get, lambda: queue.get_nowait_batch(1)):
        other.put("kept")
        with monkeypatch.context() as patch:
            patch.setattr("pulsar_ray.queue._received", interrupted)
            with pytest.raises(KeyboardInterrupt):
                take()
        assert other.get(timeout=20) == "kept"


@pytest.mark.parametrize("times", [1, 2])
def test_a_getter_that_is_cancelled_while_it_takes_an_item_leaves_it(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    queue = opened()
    queue.put("kept")
    taken = queue._taken

    async def work() -> None:
        loop, is_cancelled = asyncio.get_running_loop(), threading.Event()

        async def cancel() -> None:
            for _ in range(times):
                getting.cancel()
                await asyncio.sleep(0)
            is_cancelled.set()

        def cancelled(*arguments: Any) -> list[Any]:
            items = taken(*arguments)
            asyncio.run_coroutine_threadsafe(cancel(), loop)
            is_cancelled.wait(20)
            return items

        monkeypatch.setattr(queue, "_taken", cancelled)
        getting = asyncio.create_task(queue.get_async())
        with pytest.raises(asyncio.CancelledError):
            await getting
        monkeypatch.setattr(queue, "_taken", taken)
        assert await queue.get_async(timeout=20) == "kept"

    asyncio.run(work())
    assert queue.empty()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_getter_has_its_item_though_the_queue_is_shut_down_meanwhile(
    broker: Broker, opened: Opened, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    client = broker.client()
    queue = Queue(name=opened().topic, client=client)
    queue.put("item")
    taken = queue._taken

    def shut_down_behind(*arguments: Any) -> list[Any]:
        items = taken(*arguments)
        queue.shutdown()
        client.close()
        return items

    monkeypatch.setattr(queue, "_taken", shut_down_behind)
    assert (asyncio.run(queue.get_async()) if is_async else queue.get()) == "item"


def test_wrong_arguments_are_named(opened: Opened, client: Client) -> None:
    queue = opened()
    for call in (lambda: queue.get(timeout=-1), lambda: queue.put(1, timeout=-1)):
        with pytest.raises(ValueError, match="'timeout' must be a non-negative number"):
            call()
    with pytest.raises(TypeError, match="'items' must be an Iterable"):
        queue.put_nowait_batch(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'num_items' must be nonnegative"):
        queue.get_nowait_batch(-1)
    with pytest.raises(ValueError, match="maxsize='2' must be an int"):
        Queue("2", client=client)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="serializer=3 must be an object with functions dumps and loads"):
        Queue(serializer=3, client=client)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="actor_options have no effect"):
        Queue(1, {"num_cpus": 1}, client=client)


def test_a_handle_that_was_shut_down_says_so_and_the_items_stay(opened: Opened) -> None:
    queue = opened()
    queue.put("kept")
    queue.shutdown(force=True, grace_period_s=1)
    for call in (queue.get, lambda: queue.put(1)):
        with pytest.raises(AlreadyClosed):
            call()
    other = opened()
    assert other.get(timeout=20) == "kept"
    other.delete()
    wait_until(opened().empty, what="a deleted queue begins anew")
