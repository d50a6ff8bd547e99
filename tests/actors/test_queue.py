"""The durable queue on a real Ray: its handle goes into tasks, and its items outlive them."""

from __future__ import annotations

import os
import signal
from typing import Any

import ray
import ray.util.queue

from pulsar_ray import Client
from pulsar_ray.queue import Queue


@ray.remote
def put_all(queue: Queue, items: list[Any]) -> None:
    for item in items:
        queue.put(item)


@ray.remote
def get_all(queue: Queue) -> list[Any]:
    found = []
    while True:
        try:
            found.append(queue.get(timeout=10))
        except ray.util.queue.Empty:
            return found


def test_tasks_share_a_queue_that_outlives_a_killed_partition(client: Client, topic: str) -> None:
    queue = Queue(name=topic, client=client)
    ray.get([put_all.remote(queue, [(worker, number) for number in range(20)]) for worker in range(2)])
    assert queue.size() == 40
    os.kill(queue._admin.topics.stats(topic)["pid"], signal.SIGKILL)
    found = ray.get([get_all.remote(queue) for _ in range(2)])
    assert sorted(item for items in found for item in items) == [(w, n) for w in range(2) for n in range(20)]
    for items in found:
        for worker in range(2):
            numbers = [number for of, number in items if of == worker]
            assert numbers == sorted(numbers)
    queue.shutdown()
