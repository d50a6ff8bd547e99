"""Keep a DataFrame as Arrow blocks in Spark's executors, for Ray actors to fetch.

RayDP keeps them in the executors, in memory and on disk, and computes them again where an executor is lost.
The driver sees none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import ray
from ray.exceptions import GetTimeoutError, RayError

from pulsar_ray.errors import ServiceUnitNotReady

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
"""How long one executor may take.

It may have to be started anew, and to compute the partition once more.
"""
_ACTOR = "raydp-executor-"


class ExecutorBlock(NamedTuple):
    """One partition; called, it fetches the rows. Light to pickle."""

    rdd_id: int
    partition: int
    schema_json: str
    driver_agent: str
    executor_id: str | None

    def __call__(self) -> pa.Table:
        """Fetch the rows from an executor that has or can compute them.

        Raises ServiceUnitNotReady if none can.
        """
        worker: Any = ray._private.worker.global_worker  # noqa: SLF001 - Ray asks for it, and has no other way
        worker.set_load_code_from_local(True)
        failures = []
        for name in _executors(self.executor_id):
            try:
                executor: Any = ray.get_actor(name)
                stream: bytes = ray.get(
                    executor.getRDDPartition.remote(
                        self.rdd_id, self.partition, self.schema_json, self.driver_agent
                    ),
                    timeout=FETCH_TIMEOUT_S,
                )
            except (RayError, GetTimeoutError, ValueError) as error:
                failures.append(f"{name}: {_cause(error)}")
                continue
            with pa.ipc.open_stream(pa.BufferReader(stream)) as reader:
                return reader.read_all().replace_schema_metadata()
        raise ServiceUnitNotReady(
            f"no executor of Spark has partition {self.partition} of the rows to write "
            f"({'; '.join(failures) or 'there are none'}): is the session running? Write the batch again; "
            "where an executor ran out of memory, with more `tasks` or a larger executor_memory"
        )


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


def _executors(nearest: str | None) -> Sequence[str]:
    """Name the executors' actors, the one that has the block first.

    An executor that was started anew has another id than its actor's name.
    """
    names = [name for name in ray.util.list_named_actors() if name.startswith(_ACTOR)]
    return sorted(names, key=lambda name: name != f"{_ACTOR}{nearest}")


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
    writer = context._jvm.org.apache.spark.sql.raydp.ObjectStoreWriter  # noqa: SLF001
    level = context._jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK()  # noqa: SLF001
    kept = writer.prepareRecoverableRDD(frame._jdf, level)  # noqa: SLF001
    try:
        executor_ids = list(kept.locations())
        blocks = [
            ExecutorBlock(kept.rddId(), index, kept.schemaJson(), kept.driverAgentUrl(), executor_ids[index])
            for index in range(kept.numPartitions())
        ]
        infos = context._jsc.sc().getRDDStorageInfo()  # noqa: SLF001
        sizes = [info.memSize() + info.diskSize() for info in infos if info.id() == kept.rddId()]
        yield ExecutorBlocks(blocks, sum(sizes))
    finally:
        writer.releaseRecoverableRDD(kept.rddId())


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
