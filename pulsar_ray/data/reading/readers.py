"""Reader actors turn ranges into blocks beside the data.

Actors and not tasks: Ray ends idle workers above the number of CPUs after a second, and counts the broker's
actors with them, so that every read paid 0.6 s for new processes.
"""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ray
from ray import ObjectRef
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.data.failing_actors import (
    ATTEMPTS,
    AtWork,
    kill_stuck,
    look_after_s,
    own_error,
    with_sign_of_life,
)
from pulsar_ray.data.full_store import store_full
from pulsar_ray.data.idle_handles import IdleHandles
from pulsar_ray.data.planning.plan import ReadRange
from pulsar_ray.data.reading.avro_values import AvroValues, encode_avro_blocks
from pulsar_ray.data.reading.block_schema import BLOCK_COLUMNS
from pulsar_ray.data.reading.kept_memory import KeptMemory
from pulsar_ray.data.reading.rows import BLOCK_BYTES, encode_blocks
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.data.reading.topic_versions import TypedTopics
from pulsar_ray.data.reading.typed_values import encode_typed_blocks
from pulsar_ray.errors import PulsarException

LESS_AT_ONCE = (
    "read fewer columns, a shorter range (a stream: by max_bytes_per_trigger), or smaller block_bytes"
)
_MAX_READERS_PER_NODE = 8
_PREPARED_NODES = 8
# A reader waited some ms after each range for the next one to be sent.
_IN_HAND = 2


class BlockForm(NamedTuple):
    """How blocks are made: of about so many bytes, with these columns of BLOCK_SCHEMA.

    Values are read with the Avro schema, or by the versions of their topics, if there are such.
    """

    bytes: int = BLOCK_BYTES
    columns: tuple[str, ...] = BLOCK_COLUMNS
    avro_schema: str | None = None
    typed: TypedTopics | None = None


class _Summary(NamedTuple):
    """The last result of a read.

    Fetching it tells whether all blocks before it are there.
    """

    messages: int
    largest_bytes: int


class RangeReader:
    """Reads ranges of the node it is on."""

    def __init__(self) -> None:
        # All that Ray and Arrow have loaded was looked through again and again, a tenth of all work.
        gc.collect()
        gc.freeze()
        self._memory = KeptMemory()

    def __repr__(self) -> str:
        return "pulsar-ray reader"

    def is_alive(self) -> bool:
        """Answer, while a range is read as well."""
        return True

    def read(self, read_range: ReadRange, source: int, form: BlockForm) -> Iterator[bytes | _Summary]:
        """The range's blocks, and a summary; see `stored_rows` for errors."""
        messages = largest = 0
        for block, count in _encoded(read_range, source, form):
            messages += count
            largest = max(largest, len(block))
            yield block
        self._memory.trim()
        yield _Summary(messages, largest)


def _encoded(read_range: ReadRange, source: int, form: BlockForm) -> Iterator[tuple[bytes, int]]:
    rows = stored_rows(read_range)
    if form.typed is not None:
        typed = form.typed.of(read_range.topic)
        return encode_typed_blocks(rows, source, form.bytes, form.columns, typed)
    if form.avro_schema is None:
        stored_bytes = sum(segment.end_offset - segment.offset for segment in read_range.segments)
        return encode_blocks(rows, source, form.bytes, form.columns, stored_bytes)
    return encode_avro_blocks(rows, source, form.bytes, form.columns, AvroValues(form.avro_schema))


class _Work(NamedTuple):
    place: int
    read_range: ReadRange
    source: int
    attempt: int = 1


class ObjectStoreBlocks(NamedTuple):
    """References to blocks in the object store, their messages, and the size of the largest."""

    refs: list[ObjectRef[Any]]
    messages: int
    largest_bytes: int


class _Busy(AtWork):
    """A reader that has ranges in hand, and how many it may have."""

    def __init__(self, reader: Any, room: int) -> None:
        super().__init__(reader)
        self.room = room
        self.in_hand = 0


class _Running(NamedTuple):
    work: _Work
    busy: _Busy
    blocks: Any


class _Team:
    """The ranges of one node that wait, and the readers that have others in hand."""

    def __init__(self, node_id: str, limit: int, idle: IdleHandles[str]) -> None:
        self.waiting: deque[_Work] = deque()
        self._node_id = node_id
        self._limit = limit
        self._idle = idle
        self._busy: list[_Busy] = []

    def start(self, form: BlockForm) -> Iterator[_Running]:
        """Give readers what they have room for."""
        while self.waiting and (busy := self._with_room(self.waiting[0])) is not None:
            work = self.waiting.popleft()
            busy.in_hand += 1
            yield _Running(work, busy, busy.actor.read.remote(work.read_range, work.source, form))

    def _with_room(self, work: _Work) -> _Busy | None:
        is_again = work.attempt > 1
        if len(self._busy) < self._limit:
            # Of idle ones all may have died since.
            idle = None if is_again else self._idle.take(self._node_id)
            self._busy.append(_Busy(idle or _new_reader(self._node_id), 1 if is_again else _IN_HAND))
            return self._busy[-1]
        if is_again:
            return None
        return next((busy for busy in self._busy if busy.in_hand < busy.room), None)

    def finished(self, busy: _Busy) -> None:
        """Have a reader back of which one range is read."""
        busy.in_hand -= 1
        busy.since = time.monotonic()
        if not busy.in_hand and busy in self._busy:
            self._busy.remove(busy)
            self._idle.put_back(self._node_id, busy.actor)

    def died(self, running: _Running) -> None:
        """Have a range read again; what else its reader had in hand fails as well."""
        self._busy = [busy for busy in self._busy if busy is not running.busy]
        self.waiting.append(running.work._replace(attempt=running.work.attempt + 1))


class ReaderPool:
    """The readers of a process. A node has up to as many as CPUs.

    Each reads one range at a time, and has the next one in hand. They reserve no CPU, for executors of Spark
    may have them all.
    """

    def __init__(self) -> None:
        self._idle: IdleHandles[str] = IdleHandles()

    def read(self, ranges: Sequence[ReadRange], sources: Sequence[int], form: BlockForm) -> ObjectStoreBlocks:
        """Read the blocks of all ranges, in their order; `sources` number the ranges' partitions.

        Raises the error of the first range that fails, ObjectStoreFull where Ray's store has no room.

        A reader that dies, stands still for two minutes, or
        takes longer than `set_work_timeout` allows is replaced, twice per range; then NotConnected or Timeout
        is raised.
        """
        limits = _reader_limits()
        node_ids = dict.fromkeys(read_range.node_id for read_range in ranges)
        teams = {node_id: _Team(node_id, limits.get(node_id, 1), self._idle) for node_id in node_ids}
        for place, (read_range, source) in enumerate(zip(ranges, sources, strict=True)):
            teams[read_range.node_id].waiting.append(_Work(place, read_range, source))
        running: dict[Any, _Running] = {}
        blocks = [ObjectStoreBlocks([], 0, 0) for _ in ranges]
        while running or any(team.waiting for team in teams.values()):
            for team in teams.values():
                running |= {started.blocks.completed(): started for started in team.start(form)}
            done, _ = ray.wait(list(running), num_returns=1, timeout=look_after_s())
            if not done:
                kill_stuck({each.busy for each in running.values()})
                continue
            finished = running.pop(done[0])
            work, team = finished.work, teams[finished.work.read_range.node_id]
            try:
                blocks[work.place] = _blocks_of(finished)
            except (ActorDiedError, ActorUnavailableError) as died:
                if work.attempt == ATTEMPTS:
                    raise _gave_up(finished, died) from None
                team.died(finished)
                continue
            team.finished(finished.busy)
        refs = [ref for of_range in blocks for ref in of_range.refs]
        messages = sum(of_range.messages for of_range in blocks)
        return ObjectStoreBlocks(refs, messages, max((each.largest_bytes for each in blocks), default=0))

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


def _gave_up(running: _Running, died: RayError) -> Exception:
    return own_error(
        died,
        f"that read {running.work.read_range.topic}",
        f"read again; {LESS_AT_ONCE}",
        was_slow=running.busy.was_slow,
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
            if node["NodeID"] == here:
                # Ray may have been told of more than there are.
                cores = min(cores, len(os.sched_getaffinity(0)))
            limits[node["NodeID"]] = min(max(cores, 1), _MAX_READERS_PER_NODE)
    return limits


def _blocks_of(finished: _Running) -> ObjectStoreBlocks:
    *blocks, last = list(finished.blocks)
    try:
        summary: _Summary = ray.get(last)
    except RayError as error:
        read_range = finished.work.read_range
        full = store_full(error, f"reading {read_range.topic}", LESS_AT_ONCE, read_range.node_id)
        if full is not None:
            try:
                raise full from None
            finally:
                del full  # with its traceback it would keep the blocks of the whole read
        if isinstance(error, RayTaskError) and isinstance(error.cause, PulsarException):
            raise error.cause from None
        raise
    return ObjectStoreBlocks(blocks, summary.messages, summary.largest_bytes)


_ACTOR = with_sign_of_life(RangeReader)
READERS = ReaderPool()
"""The pool of this process."""
