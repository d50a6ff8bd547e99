"""Reading a partition's manifest back from its log.

Reads only; the directory may have any owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray.ledger.record_log import read_log
from pulsar_ray.managed_ledger.log.manifest.manifest import Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    DeduplicationSwitched,
    IncarnationRecord,
    ManifestRecord,
    SequenceIds,
    SequenceIdsForgotten,
    from_log,
)
from pulsar_ray.managed_ledger.log.position_index import IndexPoint
from pulsar_ray.managed_ledger.log.producer_sequences import SequenceReplay
from pulsar_ray.model.message_id import Position

MANIFEST = "manifest"
NOTHING = Checkpoint(-1, 0, 0, 0, 0, [], {}, [])


@dataclass
class KnownSequences:
    """The records about deduplication, in order."""

    switched_on: Position | None = None
    records: list[SequenceIds] = field(default_factory=list)
    forgotten: list[tuple[str, Position]] = field(default_factory=list)
    before_newest: int = 0
    """How many of the records stand before the newest checkpoint."""
    before_scan: int = 0
    """How many of them stand before the checkpoint at which the scan starts."""

    def add(self, record: DeduplicationSwitched | SequenceIds | SequenceIdsForgotten) -> None:
        """Take the next record."""
        if isinstance(record, SequenceIds):
            self.records.append(record)
        elif isinstance(record, DeduplicationSwitched):
            if not (record.is_on and self.switched_on is not None):
                self.switched_on = record.position if record.is_on else None
                self._drop("")
        else:
            self.forgotten.append((record.prefix, record.position))
            self._drop(record.prefix)

    def _drop(self, forgotten_prefix: str) -> None:
        """Drop what the records say of producers whose names begin so."""
        self.records = [
            SequenceIds([row for row in record.producers if not row[0].startswith(forgotten_prefix)])
            for record in self.records
        ]

    def replay(self) -> SequenceReplay:
        """Begin to go through the blocks that are scanned."""
        older, newer = self.records[: self.before_scan], self.records[self.before_scan :]
        return SequenceReplay(older, newer, self.switched_on, self.forgotten)


@dataclass
class ManifestContent:
    """The replayed manifest, and from where the entries themselves must be scanned."""

    manifest: Manifest
    is_torn: bool = False
    epoch: int = 0
    """The number of the owner that wrote it."""
    points: list[IndexPoint] = field(default_factory=list)
    incarnations: list[IncarnationRecord] = field(default_factory=list)
    folded: list[Checkpoint] = field(default_factory=list)
    """Checkpoints whose facts are taken over; the scan starts at the last of them."""
    newest: Checkpoint = NOTHING
    """The last checkpoint: what lies before it was durable."""
    sequences: KnownSequences = field(default_factory=KnownSequences)

    @property
    def scan_from(self) -> Checkpoint:
        return self.folded[-1]


def read_manifest(directory: Path) -> ManifestContent | None:
    """Replay the newest manifest; None if there is none. Raises CorruptData, UnsupportedFormatVersion.

    The scan starts one checkpoint earlier than it could, so that it meets the last frame there is.
    """
    log = read_log(directory, MANIFEST)
    if log is None:
        return None
    content = ManifestContent(Manifest(directory), log.is_torn, log.epoch)
    for record in log.records:
        parsed = from_log(record, str(log.path))
        _take(content, parsed)
    return content


def _take(content: ManifestContent, parsed: ManifestRecord) -> None:
    if isinstance(parsed, IncarnationRecord):
        content.incarnations.append(parsed)
    elif isinstance(parsed, Checkpoint):
        sequences = content.sequences
        # The snapshot's own checkpoint comes with the incarnations, so it needs no earlier one.
        if not content.folded:
            _fold(content, parsed)
            sequences.before_scan = len(sequences.records)
        elif content.newest is not content.folded[-1]:
            _fold(content, content.newest)
            sequences.before_scan = sequences.before_newest
        content.newest = parsed
        sequences.before_newest = len(sequences.records)
    elif isinstance(parsed, DeduplicationSwitched | SequenceIds | SequenceIdsForgotten):
        content.sequences.add(parsed)
    else:
        content.manifest.apply(parsed)


def _fold(content: ManifestContent, checkpoint: Checkpoint) -> None:
    content.folded.append(checkpoint)
    # A snapshot has points already that the checkpoint behind it names once more.
    behind = content.points[-1][:2] if content.points else (-1, -1)
    content.points += (point for point in map(IndexPoint._make, checkpoint.points) if point[:2] > behind)
