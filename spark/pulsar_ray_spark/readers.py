"""Reader actors turn ranges into blocks beside the data.

Actors and not tasks: Ray ends idle workers above the number of CPUs after a second, and counts the broker's
actors with them, so that every read paid 0.6 s for new processes. No pyspark here: importing it takes a
second.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ray
from ray import ObjectRef
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.errors import PulsarException
from pulsar_ray_spark.plan import ReadRange
from pulsar_ray_spark.rows import encode_blocks
from pulsar_ray_spark.segments import stored_rows

_MAX_READERS_PER_NODE = 8
_ATTEMPTS = 3


class _Summary(NamedTuple):
    """The last result of a read.

    Fetching it tells whether all blocks before it are there.
    """

    messages: int


class RangeReader:
    """Reads ranges of the node it is on."""

    def __repr__(self) -> str:
        return "pulsar-ray Spark reader"

    def read(self, read_range: ReadRange, source: int, block_bytes: int) -> Iterator[bytes | _Summary]:
        """The range's blocks, and a summary; see `stored_rows` for errors."""
        messages = 0
        for block, count in encode_blocks(stored_rows(read_range), source, block_bytes):
            messages += count
            yield block
        yield _Summary(messages)


class _Work(NamedTuple):
    place: int
    read_range: ReadRange
    source: int
    attempt: int = 1


class _Running(NamedTuple):
    work: _Work
    reader: Any
    blocks: Any


class ReaderPool:
    """A Spark session's readers, each with one range at a time.

    A node has up to as many as CPUs.

    They reserve no CPU, for Spark's executors may have them all.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[str, list[Any]] = defaultdict(list)
        self._cluster = ""

    def read(
        self, ranges: Sequence[ReadRange], sources: Sequence[int], block_bytes: int
    ) -> list[ObjectRef[Any]]:
        """References to the blocks of all ranges, in their order; `sources` number the ranges' partitions.

        Raises the error of the first range that fails; a reader that dies is replaced, twice per range.
        """
        self._forget_other_cluster()
        waiting: dict[str, deque[_Work]] = defaultdict(deque)
        for place, (read_range, source) in enumerate(zip(ranges, sources, strict=True)):
            waiting[read_range.node_id].append(_Work(place, read_range, source))
        limits = _reader_limits()
        running: dict[Any, _Running] = {}
        free = {node_id: limits.get(node_id, 1) for node_id in waiting}
        blocks: list[list[ObjectRef[Any]]] = [[] for _ in ranges]
        while running or any(waiting.values()):
            for node_id, queue in waiting.items():
                while queue and free[node_id]:
                    started = self._start(queue.popleft(), block_bytes)
                    running[started.blocks.completed()] = started
                    free[node_id] -= 1
            done, _ = ray.wait(list(running), num_returns=1)
            finished = running.pop(done[0])
            work = finished.work
            free[work.read_range.node_id] += 1
            try:
                blocks[work.place] = _blocks_of(finished)
            except (ActorDiedError, ActorUnavailableError):
                if work.attempt == _ATTEMPTS:
                    raise
                waiting[work.read_range.node_id].append(work._replace(attempt=work.attempt + 1))
                continue
            self._put_back(work.read_range.node_id, finished.reader)
        return [block for of_range in blocks for block in of_range]

    def close(self) -> None:
        """End all idle readers."""
        with self._lock:
            for reader in [reader for readers in self._idle.values() for reader in readers]:
                ray.kill(reader)
            self._idle.clear()

    def _start(self, work: _Work, block_bytes: int) -> _Running:
        node_id = work.read_range.node_id
        with self._lock:
            reader = self._idle[node_id].pop() if self._idle[node_id] else _new_reader(node_id)
        return _Running(work, reader, reader.read.remote(work.read_range, work.source, block_bytes))

    def _put_back(self, node_id: str, reader: Any) -> None:
        with self._lock:
            self._idle[node_id].append(reader)

    def _forget_other_cluster(self) -> None:
        """Drop readers of a Ray session that was shut down since."""
        context = ray.get_runtime_context()
        cluster = f"{context.gcs_address} {context.get_job_id()}"
        with self._lock:
            if cluster != self._cluster:
                self._idle.clear()
                self._cluster = cluster


def _new_reader(node_id: str) -> Any:
    # Soft: without that node the reader starts elsewhere and says that the data is not there.
    placement = NodeAffinitySchedulingStrategy(node_id, soft=True)
    return ray.remote(RangeReader).options(num_cpus=0, scheduling_strategy=placement).remote()


def _reader_limits() -> dict[str, int]:
    return {
        node["NodeID"]: min(max(int(node["Resources"].get("CPU", 1)), 1), _MAX_READERS_PER_NODE)
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"]
    }


def _blocks_of(finished: _Running) -> list[ObjectRef[Any]]:
    *blocks, summary = list(finished.blocks)
    try:
        ray.get(summary)
    except RayTaskError as error:
        if isinstance(error.cause, PulsarException):
            raise error.cause from None
        raise
    return blocks


READERS = ReaderPool()
"""The pool of this process."""
