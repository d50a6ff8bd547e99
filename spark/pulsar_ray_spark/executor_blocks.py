"""Keep a DataFrame as Arrow blocks in Spark's executors, for Ray actors to fetch.

RayDP keeps them in the executors, in memory and on disk, and computes them again where an executor is lost.
The driver sees none of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import ray
from ray.exceptions import RayError, RayTaskError

from pulsar_ray.data.full_store import store_full
from pulsar_ray.errors import ObjectStoreFull, ServiceUnitNotReady

BLOCK_BYTES = 64 << 20
"""Blocks are to be of this size.

An executor holds one that it sends in memory, about three times over.
"""
MAX_BLOCK_BYTES = 2 * BLOCK_BYTES
"""Larger blocks, in the mean, are computed again as smaller ones."""
_GUESSED_PER_CORE = 16
"""Spark's estimate makes at most so many blocks for each core.

For a join it is much too high.
"""
FETCH_TIMEOUT_S = 300.0
"""How long a partition may take to come.

Its executor may have to be started anew, and to compute it once more.
"""
PROBE_TIMEOUT_S = 10.0
"""How long an executor may take to say that it serves, before another is asked."""
REFUSALS = 5
"""How often executors that serve may fail, or none be there.

One that has just started fails once or twice.
"""
AGAIN_S = 1.0
EXECUTOR_ACTOR = "raydp-executor-"
"""Begins an executor's actor's name, before the id it first registers under."""


class ExecutorBlock(NamedTuple):
    """One partition; called, it fetches the rows. Light to pickle."""

    rdd_id: int
    partition: int
    schema_json: str
    driver_agent: str
    executor_id: str | None

    def __call__(self) -> pa.Table:
        """Fetch the rows from an executor that has or can compute them.

        One that starts anew, or has no room in Ray's object store, is waited for. Raises ServiceUnitNotReady
        if none can, and ObjectStoreFull.
        """
        worker: Any = ray._private.worker.global_worker  # noqa: SLF001 - Ray asks for it, and has no other way
        worker.set_load_code_from_local(True)
        deadline, refusals = time.monotonic() + FETCH_TIMEOUT_S, 0
        while True:
            failures = {}
            for name in _executors(self.executor_id):
                try:
                    stream = self._fetched(name, deadline)
                except (RayError, ServiceUnitNotReady, ValueError) as error:
                    failures[name] = error
                    continue
                with pa.ipc.open_stream(pa.BufferReader(stream)) as reader:
                    return reader.read_all().replace_schema_metadata()
            # There may be none for a moment, while a lost one is replaced.
            full = next(filter(None, map(_full_store, failures.values())), None)
            has_refused = any(isinstance(error, RayTaskError) for error in failures.values())
            refusals += not failures or (has_refused and full is None)
            if refusals == REFUSALS or time.monotonic() > deadline:
                if full is not None:
                    raise full
                raise ServiceUnitNotReady(
                    f"no executor of Spark has partition {self.partition} of the rows to write "
                    f"({_described(failures)}): is the session running? Write the batch again; where "
                    "an executor ran out of memory, with more `tasks` or a larger executor_memory"
                )
            time.sleep(AGAIN_S)

    def _fetched(self, name: str, deadline: float) -> bytes:
        executor: Any = ray.get_actor(name)

        def result(call: Any, at_most_s: float = FETCH_TIMEOUT_S) -> Any:
            return ray.get(call, timeout=min(at_most_s, max(0.0, deadline - time.monotonic())))

        try:
            # Of no partition, which an executor answers that Spark has started. One that Ray has just started
            # anew would keep a fetch waiting in one of its two threads, and with two of them Spark's order to
            # start could not get through any more.
            # Nor does one answer that waits for room on Ray, where another may have the rows.
            result(executor.getBlockLocations.remote(self.rdd_id, 0), PROBE_TIMEOUT_S)
        except RayTaskError:
            raise ServiceUnitNotReady("Spark has not started it yet") from None
        stream: bytes = result(
            executor.getRDDPartition.remote(self.rdd_id, self.partition, self.schema_json, self.driver_agent)
        )
        return stream


def _full_store(error: Exception) -> ObjectStoreFull | None:
    return store_full(
        error, "fetching rows to write from Spark", "write in more `tasks`, or fewer rows at once"
    )


def _described(failures: Mapping[str, Exception]) -> str:
    return "; ".join(f"{name}: {_cause(error)}" for name, error in failures.items()) or "there are none"


def _cause(error: Exception) -> str:
    """Return the innermost cause of an error in a JVM."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("at ", "... "))]
    causes = [line for line in said if line.startswith("Caused by")]
    return (causes or said or [type(error).__name__])[-1]


def blocks_to_begin_with(frame: Any) -> int:
    """Return into how many blocks a DataFrame goes that has not been computed yet.

    As many as Spark has cores, or more if Spark takes it to be large.
    """
    cores: int = frame.sparkSession.sparkContext.defaultParallelism
    estimate: int = frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()  # noqa: SLF001
    # What Spark knows nothing of has the largest size there is.
    is_known = estimate < 1 << 60
    return max(cores, min(-(-estimate // BLOCK_BYTES), cores * _GUESSED_PER_CORE)) if is_known else cores


def executors_among(names: Iterable[str]) -> list[str]:
    """Return those names of actors that Spark's executors have."""
    return [name for name in names if name.startswith(EXECUTOR_ACTOR)]


def _executors(nearest: str | None) -> Sequence[str]:
    """Name the executors' actors, the one that has the block first.

    An executor that was started anew has another id than its actor's name.
    """
    return sorted(
        executors_among(ray.util.list_named_actors()), key=lambda name: name != f"{EXECUTOR_ACTOR}{nearest}"
    )


class ExecutorBlocks(NamedTuple):
    """The blocks of a DataFrame, and the bytes of all of them."""

    blocks: list[ExecutorBlock]
    total_bytes: int

    @property
    def blocks_wanted(self) -> int:
        """How many blocks there should be, for none to be too large."""
        if self.total_bytes <= MAX_BLOCK_BYTES * len(self.blocks):
            return len(self.blocks)
        return -(-self.total_bytes // BLOCK_BYTES)


@contextmanager
def executor_blocks(frame: Any) -> Iterator[ExecutorBlocks]:
    """Have Spark compute a DataFrame, a block of each partition.

    The blocks are released at the end.
    """
    context = frame.sparkSession.sparkContext
    jvm = context._jvm  # noqa: SLF001
    writer = jvm.org.apache.spark.sql.raydp.ObjectStoreWriter
    # As RayDP's `prepareRecoverableRDD` does, which fails behind the death of an executor: it asks Ray for
    # actors by the ids of Spark's executors, and these have others then.
    rows = frame._jdf.toArrowBatchRdd()  # noqa: SLF001
    rows.persist(jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK())
    try:
        rows.count()
        rdd_id, parts = rows.id(), range(rows.getNumPartitions())
        common = writer.toArrowSchema(frame._jdf).toJson(), writer.driverAgentUrl()  # noqa: SLF001
        blocks = [ExecutorBlock(rdd_id, part, *common, _holder(jvm, rdd_id, part)) for part in parts]
        infos = context._jsc.sc().getRDDStorageInfo()  # noqa: SLF001
        sizes = [info.memSize() + info.diskSize() for info in infos if info.id() == rdd_id]
        yield ExecutorBlocks(blocks, sum(sizes))
    finally:
        rows.unpersist(False)


def _holder(jvm: Any, rdd_id: int, partition: int) -> str | None:
    """Return the id of the executor that has a partition.

    None if it was lost since.
    """
    master = jvm.org.apache.spark.SparkEnv.get().blockManager().master()
    holders = master.getLocations(jvm.org.apache.spark.storage.RDDBlockId(rdd_id, partition))
    return None if holders.isEmpty() else str(holders.head().executorId())


@dataclass(frozen=True)
class MessageRows:
    """A block of `message_columns`; called, it fetches the rows as a table that producers take."""

    block: ExecutorBlock

    def __call__(self) -> pa.Table:
        """Fetch the rows, with properties as a map."""
        table = self.block()
        if "properties" not in table.column_names:
            return table
        index = table.column_names.index("properties")
        maps = [_as_map(chunk) for chunk in table.column(index).chunks]
        return table.set_column(index, "properties", pa.chunked_array(maps, _MAP))


_MAP = pa.map_(pa.string(), pa.string())


def _as_map(entries: pa.ListArray) -> pa.MapArray:
    pairs = entries.flatten()
    offsets = pa.compute.cumulative_sum(pa.compute.list_value_length(entries))
    starts = pa.concat_arrays([pa.array([0], pa.int32()), offsets.cast(pa.int32())])
    return pa.MapArray.from_arrays(starts, pairs.field(0), pairs.field(1))
