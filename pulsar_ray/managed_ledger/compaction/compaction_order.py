"""Orders of partitions to the processes that compact for them, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.compaction.compacted_form import KeptSegment
from pulsar_ray.managed_ledger.compaction.stored_blocks import SourceSegment
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted
from pulsar_ray.model.message_id import Position


class CompactionOrder(NamedTuple):
    """An order says which part of a log is to be compacted, and how.

    `segments` are those of the form before, which ends with the entry `behind`, then those of the log up to
    the `horizon`. `number` is the new form's, which no files have.
    """

    directory: str
    number: int
    epoch: int
    topic: str
    partition: int
    created_ms: int
    segments: Sequence[SourceSegment]
    behind: Position
    horizon: Position
    retains_null_key: bool
    max_key_bytes: int

    @property
    def key(self) -> tuple[int, int]:
        """The owner's epoch and the form's number; rises from order to order of a partition."""
        return self.epoch, self.number


class CompactionOutcome(NamedTuple):
    """A compaction has written this, durably.

    `last` is the id of the last message that is kept: ledger, entry, batch index or -1, batch size.
    """

    number: int
    horizon: Position
    segments: tuple[KeptSegment, ...]
    last: tuple[int, int, int, int]
    kept: int
    removed: int
    read_bytes: int
    written_bytes: int

    def record(self, began_ms: int, ended_ms: int) -> Compacted:
        """Return what the partition's manifest is to have of it."""
        return Compacted(
            self.number,
            *self.horizon,
            self.segments,
            self.last,
            self.written_bytes,
            self.removed,
            began_ms,
            ended_ms,
        )


class JobState(NamedTuple):
    """How far a compaction is; with an outcome or an error it has ended."""

    share: float
    outcome: CompactionOutcome | None = None
    error: PulsarException | None = None
