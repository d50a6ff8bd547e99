"""Write a round's files in Ray tasks beside the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.errors import NotConnected, PulsarException
from pulsar_ray_spark.landing.file_writing import FileJob, WrittenFile, write_file

_TASKS_PER_NODE = 4
_RETRIES = 3
# Made once: Ray keeps each of its functions for as long as the job lasts.
_WRITE_FILE: Any = ray.remote(write_file)


def write_on_ray(jobs: Sequence[FileJob]) -> Iterator[WrittenFile]:
    """Write files, some at a time, each on the node of its data.

    Yields them as they are done. A task whose process dies is started again, which does no harm. Raises the
    first error of a task, NotConnected if its processes died again and again; the others go on, and leave
    files that the next attempt finds.
    """
    waiting = list(reversed(jobs))
    running: list[Any] = []
    limit = _TASKS_PER_NODE * max(len({job.read_range.node_id for job in jobs}), 1)
    while waiting or running:
        while waiting and len(running) < limit:
            running.append(_start(waiting.pop()))
        (done,), running = ray.wait(running, num_returns=1)
        yield _result(done)


def _start(job: FileJob) -> Any:
    # Soft: without that node the task starts elsewhere and says that the data is not there. No CPU is
    # reserved, for Spark's executors may have them all.
    placement = NodeAffinitySchedulingStrategy(job.read_range.node_id, soft=True)
    task = _WRITE_FILE.options(
        num_cpus=0, max_retries=_RETRIES, scheduling_strategy=placement, name="pulsar-ray landing"
    )
    return task.remote(job)


def _result(done: Any) -> WrittenFile:
    try:
        written: WrittenFile = ray.get(done)
    except RayTaskError as error:
        if isinstance(error.cause, PulsarException | OSError):
            raise error.cause from None
        raise
    except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
        raise NotConnected(f"the processes that wrote a file of the landing died: {error}") from error
    return written


def alive_nodes() -> int:
    """How many nodes the cluster has."""
    return sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]
