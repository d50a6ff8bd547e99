"""The contents of a partition's manifest on their way into a new one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.owner_lock import take_free_lock
from pulsar_ray.ledger.record_log import RecordLog
from pulsar_ray.managed_ledger.log.manifest.manifest import Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST, KnownSequences, ManifestContent
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    DeduplicationSwitched,
    IncarnationRecord,
    ManifestRecord,
    SequenceIdsForgotten,
    to_log,
)


@dataclass
class PartitionContent:
    """A manifest, and what it says of producers.

    The next owner scans all ledgers and finds the rest there: where frames stand, and who wrote last.
    """

    manifest: Manifest
    incarnations: list[IncarnationRecord] = field(default_factory=list)
    retired: set[int] = field(default_factory=set)
    sequences: KnownSequences = field(default_factory=KnownSequences)

    @classmethod
    def of(cls, content: ManifestContent) -> PartitionContent:
        """The contents of an intact manifest."""
        found = cls(content.manifest, list(content.incarnations), sequences=content.sequences)
        for checkpoint in (*content.folded, content.newest):
            found.add_checkpoint(checkpoint)
        return found

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Take what a checkpoint says of producers."""
        self.incarnations += checkpoint.written
        self.retired.update(checkpoint.retired)

    def write(self) -> None:
        """Make it the partition's manifest, durably; nobody may own the directory."""
        directory: Path = self.manifest.directory
        owner = DirectoryOwner.open(directory, create=True, acquire_lock=take_free_lock)
        log = RecordLog(owner, MANIFEST)
        try:
            log.rewrite([to_log(record) for record in self._records()])
        finally:
            log.close()
            owner.close()

    def _records(self) -> Iterator[ManifestRecord]:
        manifest, sequences = self.manifest, self.sequences
        yield from manifest.snapshot()
        yield from self.incarnations
        if sequences.switched_on is not None:
            yield DeduplicationSwitched(True, *sequences.switched_on)
            for prefix, position in sequences.forgotten:
                yield SequenceIdsForgotten(prefix, *position)
            yield from sequences.records
        first = next(iter(manifest.ledgers.values()), None)
        place = (manifest.last_position.ledger_id + 1, 0, SEGMENT_HEADER_SIZE, 0)
        if first is not None:
            segment = first.segments[0]
            place = (*segment[:2], SEGMENT_HEADER_SIZE, segment.first_entry_id)
        yield Checkpoint(*place, 0, [], {}, sorted(self.retired))
