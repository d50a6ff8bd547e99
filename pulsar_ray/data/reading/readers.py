"""Reader actors turn ranges into blocks beside the data.

Actors and not tasks: Ray ends idle workers above the number of CPUs after a second, and counts the broker's
actors with them, so that every read paid 0.6 s for new processes.
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ray
from ray import ObjectRef
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.data import frozen_actors
from pulsar_ray.data.idle_actors import IdleActors
from pulsar_ray.data.planning.plan import ReadRange
from pulsar_ray.data.reading.avro_blocks import encode_avro_blocks
from pulsar_ray.data.reading.avro_values import AvroValues
from pulsar_ray.data.reading.block_schema import BLOCK_COLUMNS
from pulsar_ray.data.reading.rows import BLOCK_BYTES, encode_blocks
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import NotConnected, PulsarException

_MAX_READERS_PER_NODE = 8
_PREPARED_NODES = 8
_ATTEMPTS = 3


class BlockForm(NamedTuple):
    """How blocks are made: of about so many bytes, with these columns of BLOCK_SCHEMA.

    Values are read with the Avro schema, if there is one.
    """

    bytes: int = BLOCK_BYTES
    columns: tuple[str, ...] = BLOCK_COLUMNS
    avro_schema: str | None = None


class _Summary(NamedTuple):
    """The last result of a read.

    Fetching it tells whether all blocks before it are there.
    """

    messages: int


class RangeReader:
    """Reads ranges of the node it is on."""

    def __init__(self) -> None:
        # What Ray and Arrow have loaded was looked through again and again, a tenth of all work.
        gc.collect()
        gc.freeze()

    def __repr__(self) -> str:
        return "pulsar-ray reader"

    def is_alive(self) -> bool:
        """Answer, while a range is read as well."""
        return True

    def read(self, read_range: ReadRange, source: int, form: BlockForm) -> Iterator[bytes | _Summary]:
        """The range's blocks, and a summary; see `stored_rows` for errors."""
        messages = 0
        for block, count in _encoded(read_range, source, form):
            messages += count
            yield block
        yield _Summary(messages)


def _encoded(read_range: ReadRange, source: int, form: BlockForm) -> Iterator[tuple[bytes, int]]:
    rows = stored_rows(read_range)
    if form.avro_schema is None:
        stored_bytes = sum(segment.end_offset - segment.offset for segment in read_range.segments)
        return encode_blocks(rows, source, form.bytes, form.columns, stored_bytes)
    return encode_avro_blocks(rows, source, form.bytes, form.columns, AvroValues(form.avro_schema))


class _Work(NamedTuple):
    place: int
    read_range: ReadRange
    source: int
    attempt: int = 1


class ReadBlocks(NamedTuple):
    """References to blocks in the object store, and the messages in all of them."""

    refs: list[ObjectRef[Any]]
    messages: int


class _Running(NamedTuple):
    work: _Work
    reader: Any
    blocks: Any


class ReaderPool:
    """The readers of a process, each with one range at a time.

    A node has up to as many as CPUs.

    They reserve no CPU, for executors of Spark may have them all.
    """

    def __init__(self) -> None:
        self._idle: IdleActors[str] = IdleActors()

    def read(self, ranges: Sequence[ReadRange], sources: Sequence[int], form: BlockForm) -> ReadBlocks:
        """Read the blocks of all ranges, in their order; `sources` number the ranges' partitions.

        Raises the error of the first range that fails. A reader that dies, or stands still for two minutes,
        is replaced, twice per range; then NotConnected is raised.
        """
        waiting: dict[str, deque[_Work]] = defaultdict(deque)
        for place, (read_range, source) in enumerate(zip(ranges, sources, strict=True)):
            waiting[read_range.node_id].append(_Work(place, read_range, source))
        limits = _reader_limits()
        running: dict[Any, _Running] = {}
        free = {node_id: limits.get(node_id, 1) for node_id in waiting}
        blocks = [ReadBlocks([], 0) for _ in ranges]
        while running or any(waiting.values()):
            for node_id, queue in waiting.items():
                while queue and free[node_id]:
                    started = self._start(queue.popleft(), form)
                    running[started.blocks.completed()] = started
                    free[node_id] -= 1
            done, _ = ray.wait(list(running), num_returns=1, timeout=frozen_actors.LOOK_AFTER_S)
            if not done:
                frozen_actors.kill_frozen(each.reader for each in running.values())
                continue
            finished = running.pop(done[0])
            work = finished.work
            free[work.read_range.node_id] += 1
            try:
                blocks[work.place] = _blocks_of(finished)
            except (ActorDiedError, ActorUnavailableError) as died:
                if work.attempt == _ATTEMPTS:
                    raise _died_again(work, died) from None
                waiting[work.read_range.node_id].append(work._replace(attempt=work.attempt + 1))
                continue
            self._idle.put_back(work.read_range.node_id, finished.reader)
        refs = [ref for of_range in blocks for ref in of_range.refs]
        return ReadBlocks(refs, sum(of_range.messages for of_range in blocks))

    def prepare(self) -> None:
        """Begin to start the readers of this cluster's first nodes, without waiting for them.

        A reader takes about a second until it reads, which the first read would wait for.
        """
        for node_id, limit in list(_reader_limits().items())[:_PREPARED_NODES]:
            for _ in range(limit - self._idle.count(node_id)):
                self._idle.put_back(node_id, _new_reader(node_id))

    def close(self) -> None:
        """End all idle readers."""
        self._idle.close()

    def _start(self, work: _Work, form: BlockForm) -> _Running:
        node_id = work.read_range.node_id
        # Of idle ones all may have died since.
        idle = self._idle.take(node_id) if work.attempt == 1 else None
        reader = idle or _new_reader(node_id)
        return _Running(work, reader, reader.read.remote(work.read_range, work.source, form))


def _died_again(work: _Work, died: RayError) -> NotConnected:
    text = str(died).strip().splitlines()[0]
    return NotConnected(
        f"the process that read {work.read_range.topic} died {_ATTEMPTS} times ({text}): see its log in the "
        "Ray dashboard, above all for want of memory, and read again, with smaller block_bytes or fewer "
        "columns"
    )


def _new_reader(node_id: str) -> Any:
    # Soft: without that node the reader starts elsewhere and says that the data is not there.
    placement = NodeAffinitySchedulingStrategy(node_id, soft=True)
    return _ACTOR.options(num_cpus=0, scheduling_strategy=placement).remote()


def _reader_limits() -> dict[str, int]:
    here = ray.get_runtime_context().get_node_id()
    limits = {}
    for node in ray.nodes():  # type: ignore[no-untyped-call]
        if node["Alive"]:
            cores = int(node["Resources"].get("CPU", 1))
            # Ray may have been told of more than there are; more readers than cores take their memory in vain.
            cores = min(cores, len(os.sched_getaffinity(0))) if node["NodeID"] == here else cores
            limits[node["NodeID"]] = min(max(cores, 1), _MAX_READERS_PER_NODE)
    return limits


def _blocks_of(finished: _Running) -> ReadBlocks:
    *blocks, last = list(finished.blocks)
    try:
        summary: _Summary = ray.get(last)
    except RayTaskError as error:
        if isinstance(error.cause, PulsarException):
            raise error.cause from None
        raise
    return ReadBlocks(blocks, summary.messages)


_ACTOR = frozen_actors.with_sign_of_life(RangeReader)
READERS = ReaderPool()
"""The pool of this process."""
