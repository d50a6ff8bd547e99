"""How far each change log is applied, and each subject's last change."""

from __future__ import annotations

from pulsar_ray.broker.catalog.catalog_file import CatalogFile
from pulsar_ray.model.message_id import EARLIEST, Position


class ChangeLogTable:
    """The partitions of change logs that were ever used, by their full names.

    One is dirty from before an append until its event is applied: after a crash its tail is read.
    """

    def __init__(self, db: CatalogFile) -> None:
        self._db = db
        self.transaction = db.transaction
        self.unknown: set[str] = set()
        """Partitions whose changes are not all known, since a restart or for good."""

    def is_known(self, partition: str) -> bool:
        """Whether the partition was ever used."""
        return bool(self._db.execute("SELECT 1 FROM change_log WHERE partition = ?", (partition,)))

    def dirty(self) -> list[str]:
        """The partitions that may have events which were not applied."""
        rows = self._db.execute("SELECT partition FROM change_log WHERE is_dirty ORDER BY partition")
        return [row[0] for row in rows]

    def is_dirty(self, partition: str) -> bool:
        """Whether a partition may have events that were not applied."""
        return bool(
            self._db.execute("SELECT 1 FROM change_log WHERE partition = ? AND is_dirty", (partition,))
        )

    def of_log(self, log: str) -> list[str]:
        """The partitions of one log that were ever used."""
        rows = self._db.execute("SELECT partition FROM change_log")
        return [row[0] for row in rows if row[0].startswith(f"{log}-partition-")]

    def mark_dirty(self, partition: str) -> None:
        """Note durably that events may follow behind the applied ones."""
        self._db.execute(
            "INSERT INTO change_log (partition, is_dirty) VALUES (?, 1) "
            "ON CONFLICT (partition) DO UPDATE SET is_dirty = 1",
            (partition,),
        )

    def expect(self, partition: str) -> None:
        """Note that there is a partition which nobody has read, unless it is known."""
        if not self.is_known(partition):
            self.mark_dirty(partition)
            self.unknown.add(partition)

    def applied(self, partition: str) -> Position:
        """Return the position of the last event that was applied; EARLIEST if none was."""
        rows = self._db.execute(
            "SELECT ledger_id, entry_id FROM change_log WHERE partition = ?", (partition,)
        )
        return Position(*rows[0]) if rows else EARLIEST

    def mark_applied(self, partition: str, position: Position) -> None:
        """Note that all events up to a position are applied, and that none follows."""
        self._db.execute("INSERT OR REPLACE INTO change_log VALUES (?, 0, ?, ?)", (partition, *position))

    def version_of(self, event_type: str, subject: str) -> int:
        """Return the version of a subject's last change, deletions included; 0 if there was none."""
        rows = self._db.execute(
            "SELECT version FROM last_change WHERE type = ? AND subject = ?", (event_type, subject)
        )
        return int(rows[0][0]) if rows else 0

    def note_version(self, event_type: str, subject: str, version: int, *, is_deleted: bool) -> None:
        """Let changes up to this version come too late from now on."""
        self._db.execute(
            "INSERT OR REPLACE INTO last_change VALUES (?, ?, ?, ?)",
            (event_type, subject, version, is_deleted),
        )

    def forget_deleted(self, before: int) -> None:
        """Forget subjects deleted before a version: no request is under way for so long."""
        self._db.execute("DELETE FROM last_change WHERE is_deleted AND version < ?", (before,))

    def forget(self, partition: str) -> None:
        """Forget a partition that was deleted."""
        self._db.execute("DELETE FROM change_log WHERE partition = ?", (partition,))
        self.unknown.discard(partition)
