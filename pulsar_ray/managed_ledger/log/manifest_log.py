"""Reading a partition's manifest back from its log.

Reads only; the directory may have any owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray.ledger.record_log import read_log
from pulsar_ray.managed_ledger.log.manifest import Manifest
from pulsar_ray.managed_ledger.log.manifest_records import Checkpoint, IncarnationRecord, from_log
from pulsar_ray.managed_ledger.log.position_index import IndexPoint

MANIFEST = "manifest"
NOTHING = Checkpoint(-1, 0, 0, 0, 0, [], {}, [])


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
        if isinstance(parsed, IncarnationRecord):
            content.incarnations.append(parsed)
        elif isinstance(parsed, Checkpoint):
            # The snapshot's own checkpoint comes with the incarnations, so it needs no earlier one.
            if not content.folded:
                _fold(content, parsed)
            elif content.newest is not content.folded[-1]:
                _fold(content, content.newest)
            content.newest = parsed
        else:
            content.manifest.apply(parsed)
    return content


def _fold(content: ManifestContent, checkpoint: Checkpoint) -> None:
    content.folded.append(checkpoint)
    content.points.extend(IndexPoint(*point) for point in checkpoint.points)
