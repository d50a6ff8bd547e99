"""A change of the manifest on its way to the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from pulsar_ray.ledger.segment_file import parse_segment_name
from pulsar_ray.managed_ledger.log.commit import LogFiles
from pulsar_ray.managed_ledger.log.manifest.manifest_records import ManifestRecord, to_log
from pulsar_ray.model.message_id import Position


class ManifestChange:
    """`run` it on the commit thread, then finish or fail it on the owner loop."""

    def __init__(
        self,
        files: LogFiles,
        records: Sequence[ManifestRecord],
        result: Any = None,
        *,
        hold: Position | None = None,
        deleted: Sequence[int] = (),
    ) -> None:
        self.files = files
        self.records = list(records)
        self.result = result
        self.hold = hold
        """A hold that the change registers or moves.

        Trimming respects the hold from the beginning of the change on.
        """
        self.deleted = set(deleted)
        """Ledgers to unlink once the change is durable."""
        self.ends: list[ManifestRecord] = []
        """The records among them that end ledgers.

        Another write takes them over if this change fails.
        """
        self.is_written = False
        """Whether the records are durable; set by `run`."""
        self.snapshot: Sequence[ManifestRecord] | None = None
        self.begins_log = False
        """Whether it begins the manifest of a new owner."""

    def run(self) -> None:
        """Write and sync the records, check the epoch, unlink what they delete; raises Fenced, OSError."""
        run_together([self])


def run_together(changes: Sequence[ManifestChange]) -> None:
    """Run several changes with one write and one sync.

    All of them become durable, or it raises.
    """
    records = [to_log(record) for change in changes for record in change.records]
    snapshot = next((change.snapshot for change in reversed(changes) if change.snapshot is not None), None)
    files = changes[0].files
    if snapshot is not None:
        files.log.rewrite([*map(to_log, snapshot), *records])
    elif records:
        files.log.append(records)
    for change in changes:
        change.is_written = True
    deleted = {ledger_id for change in changes for ledger_id in change.deleted}
    if deleted:
        _unlink(files, deleted)


def _unlink(files: LogFiles, ledger_ids: set[int]) -> None:
    """Remove the files of ledgers that the manifest durably calls deleted.

    Should we be a former owner, nobody misses them.
    """
    for path in files.owner.path.iterdir():
        parsed = parse_segment_name(path.name)
        if parsed is not None and parsed[0] in ledger_ids:
            with contextlib.suppress(FileNotFoundError):
                files.disk.unlink(path)
