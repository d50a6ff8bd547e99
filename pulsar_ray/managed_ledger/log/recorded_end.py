"""A note in the manifest of how far the log is durable, between two appends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pulsar_ray.ledger.record_log import RecordLog
from pulsar_ray.managed_ledger.log.manifest.manifest_records import (
    Checkpoint,
    ManifestRecord,
    SequenceIds,
    to_log,
)


class RecordedEnd:
    """`run` writes it on the commit thread; nothing has to be finished behind it.

    A file that is cut before that end while nobody owns the log is then known to have lost confirmed entries
    (ADR 0081). It is not synced: it outlasts the process, and behind a power cut nothing depends on it.
    """

    def __init__(self, log: RecordLog, checkpoint: Checkpoint, sequence_ids: Sequence[SequenceIds]) -> None:
        self._log = log
        self._records: list[ManifestRecord] = [*sequence_ids, checkpoint]

    def run(self) -> None:
        """Write it, if the disk takes it.

        A log that had a failed write is rewritten by the next change, with all that this would say.
        """
        with contextlib.suppress(OSError):
            self._log.append([to_log(record) for record in self._records], sync=False)
