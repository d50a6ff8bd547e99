"""Mends what compaction has kept of a partition.

It costs nothing where the log still has it all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from pulsar_ray.broker.partition.topic_compaction import compacted_segments
from pulsar_ray.ledger.segment_file import parse_compacted_name
from pulsar_ray.maintenance.damage import Damage
from pulsar_ray.maintenance.partition_repair import Repair, SetAside
from pulsar_ray.maintenance.rebuilding import PartitionContent
from pulsar_ray.managed_ledger.compaction.compacted_form import describe_form
from pulsar_ray.managed_ledger.compaction.compactor import last_kept_in
from pulsar_ray.managed_ledger.log.manifest.manifest_log import ManifestContent, read_manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted


def is_of_form(damage: Damage) -> bool:
    """Whether a damage is one of what compaction has kept."""
    return parse_compacted_name(Path(damage.path).name) is not None


def mended_form(directory: Path, damages: Iterable[Damage]) -> list[Repair]:
    """Plan what mends a form without a loss.

    Only reads. Raises as `read_manifest`.
    """
    content = read_manifest(directory)
    if content is None:
        return []
    take_unlisted(content)
    return repairs_of_form(content, [each for each in damages if is_of_form(each)], cuts_damaged=False)


def repairs_of_form(
    content: ManifestContent, damages: Sequence[Damage], *, cuts_damaged: bool
) -> list[Repair]:
    """Plan to forget a damaged form if the log has all of it.

    With `cuts_damaged` its damaged ledgers are given up otherwise.

    Only reads. Raises CorruptData, SegmentGone.
    """
    compacted = content.manifest.compacted
    if not damages or compacted is None:
        return []
    lost = {damage.ledger_id for damage in damages}
    left = [segment for segment in compacted.segments if segment[0] not in lost]
    kept: Compacted | None = None
    if all(segment[0] in content.manifest.ledgers for segment in compacted.segments):
        text = "what compaction has kept is forgotten: readers of it get the log until it is compacted again"
    elif not cuts_damaged:
        return []
    else:
        text = "what compaction has kept of the ledger is given up"
        if left:
            kept = compacted._replace(segments=left)
            source = compacted_segments(content.manifest.directory, kept)[-1]
            kept = kept._replace(last=last_kept_in(source))
    run = partial(_take, content=content, kept=kept, paths=[Path(damage.path) for damage in damages])
    return [Repair(damage.kind, damage.path, text, _nothing, damage.topic) for damage in damages[:-1]] + [
        Repair(damages[-1].kind, damages[-1].path, text, run, damages[-1].topic)
    ]


def _nothing(_: SetAside) -> None:
    """A part of what the last repair of the form does."""


def _take(aside: SetAside, content: ManifestContent, kept: Compacted | None, paths: Sequence[Path]) -> None:
    partition = PartitionContent.of(content)
    directory = partition.manifest.directory
    for path in directory.glob("manifest-*"):
        aside.keep(path)
    partition.manifest.compacted = kept
    partition.write()
    if kept is not None:
        describe_form(directory, kept)
    # Files of a form that nothing names are removed by the broker.
    for path in paths:
        if path.exists():
            aside.take(path)
