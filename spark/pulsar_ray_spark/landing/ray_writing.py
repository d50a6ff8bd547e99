"""Write a round's files in Ray tasks beside the data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.data.failing_actors import ATTEMPTS, look_after_s, own_error, slow_error, work_timeout_s
from pulsar_ray_spark.landing.file_writing import FileJob, WrittenFile, write_file

_TASKS_PER_NODE = 4
_RETRIES = 3
# Made once: Ray keeps each of its functions for as long as the job lasts.
_WRITE_FILE: Any = ray.remote(write_file)


class _Running(NamedTuple):
    job: FileJob
    since: float
    attempt: int


def write_on_ray(jobs: Sequence[FileJob]) -> Iterator[WrittenFile]:
    """Write files, some at a time, each on the node of its data.

    Yields them as they are done. A task whose process dies, or that takes longer than `set_work_timeout`
    allows, is started again, which does no harm. Raises the first error of a task, NotConnected if its
    processes died again and again, Timeout if they took too long each time; the others go on, and leave files
    that the next attempt finds.
    """
    waiting = list(reversed(jobs))
    running: dict[Any, _Running] = {}
    limit = _TASKS_PER_NODE * max(len({job.read_range.node_id for job in jobs}), 1)
    while waiting or running:
        while waiting and len(running) < limit:
            job = waiting.pop()
            running[_start(job)] = _Running(job, time.monotonic(), 1)
        done, _ = ray.wait(list(running), num_returns=1, timeout=look_after_s())
        for each in done:
            del running[each]
            yield _result(each)
        if not done:
            running = {
                task: each for old, begun in running.items() for task, each in [_looked_at(old, begun)]
            }


def _looked_at(task: Any, begun: _Running) -> tuple[Any, _Running]:
    """The task, or the one in its place if it takes too long."""
    now = time.monotonic()
    if now - begun.since < work_timeout_s():
        return task, begun
    ray.cancel(task, force=True)
    if begun.attempt == ATTEMPTS:
        raise slow_error(f"that wrote {begun.job.name}")
    return _start(begun.job), _Running(begun.job, now, begun.attempt + 1)


def _start(job: FileJob) -> Any:
    # Soft: without that node the task starts elsewhere and says that the data is not there. No CPU is
    # reserved, for Spark's executors may have them all.
    node_id = job.read_range.node_id
    # None is known of a topic that is gone.
    placement = NodeAffinitySchedulingStrategy(node_id, soft=True) if node_id else "DEFAULT"
    task = _WRITE_FILE.options(
        num_cpus=0, max_retries=_RETRIES, scheduling_strategy=placement, name="pulsar-ray landing"
    )
    return task.remote(job)


def _result(done: Any) -> WrittenFile:
    try:
        written: WrittenFile = ray.get(done)
    except RayError as error:
        raise own_error(
            error, "that wrote a file of the landing", "land with a smaller max_bytes_per_file"
        ) from None
    return written


def alive_nodes() -> int:
    """How many nodes the cluster has."""
    return sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]
