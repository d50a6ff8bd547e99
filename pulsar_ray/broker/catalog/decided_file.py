"""A catalog's file takes in what was decided, in the object store before (ADR 0140)."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pulsar_ray.broker.catalog.catalog_file import (
    BESIDE_SQLITE,
    CATALOG_VERSION,
    CatalogFile,
    make_file,
    tables_in,
)
from pulsar_ray.errors import BrokerPersistenceError, JournalDamaged
from pulsar_ray.journal.objects import Place, RowChange
from pulsar_ray.ledger.disk import SYSTEM_DISK

PART_BYTES = 4 * 1024 * 1024


class DecidedFile:
    """Belongs to one thread at a time. Methods raise BrokerPersistenceError for the disk."""

    def __init__(self, path: Path, url: str) -> None:
        """Open the file that is there, as CatalogFile.open."""
        CatalogFile.open(path).close()
        self._path, self._url = path, url
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA synchronous=FULL")
        self._tables = tables_in(self._db)

    @classmethod
    def make(cls, path: Path, url: str, place: Place, rows: Iterable[RowChange]) -> None:
        """Make the file anew of rows that were decided."""
        staged = path.with_name(f"{path.name}.new")
        try:
            for leftover in path.parent.glob(f"{staged.name}*"):
                leftover.unlink()
            make_file(staged)
            file = cls(staged, url)
            with contextlib.closing(file):
                for table in file._tables:
                    file._db.execute(f"DELETE FROM {table}")  # noqa: S608 - a table's name
                file.take_in(rows, place)
                file._db.execute(f"PRAGMA user_version={CATALOG_VERSION}")
                file._db.execute("PRAGMA journal_mode=DELETE")
            for name in BESIDE_SQLITE:
                # SQLite would put the changes of the former one into this one.
                path.with_name(path.name + name).unlink(missing_ok=True)
            staged.rename(path)
            SYSTEM_DISK.fsync_dir(path.parent)
        except (OSError, sqlite3.OperationalError) as error:
            raise BrokerPersistenceError(f"{path} cannot be made ({error}): see to its disk") from None

    @property
    def place(self) -> Place | None:
        """The place up to which it has all decisions, None without any."""
        rows = self._db.execute("SELECT epoch, number FROM decided WHERE url = ?", (self._url,)).fetchall()
        return Place(*rows[0]) if rows else None

    def take_in(self, rows: Iterable[RowChange], place: Place) -> None:
        """Commit rows as they were decided before a place; nothing changes if they are there."""
        last = {(row.table, row.row_id): row for row in rows}
        with self._storing():
            for row in last.values():
                self._check(row)
                self._db.execute(f"DELETE FROM {row.table} WHERE rowid = ?", (row.row_id,))  # noqa: S608 - checked
            for row in last.values():
                if row.values is not None:
                    names = ", ".join(("rowid", *row.values))
                    marks = ", ".join("?" * (1 + len(row.values)))
                    insert = f"INSERT INTO {row.table} ({names}) VALUES ({marks})"  # noqa: S608 - checked
                    self._db.execute(insert, (row.row_id, *row.values.values()))
            self._db.execute("INSERT OR REPLACE INTO decided VALUES (1, ?, ?, ?)", (self._url, *place))

    def _check(self, row: RowChange) -> None:
        known = self._tables.get(row.table)
        if known is None or not set(row.values or ()) <= set(known):
            raise JournalDamaged(
                f"decisions are about {row.table} ({', '.join(row.values or ())}), which this build does not "
                "know: use the version that wrote them, or a newer one"
            )

    def parts(self) -> Iterator[tuple[RowChange, ...]]:
        """Yield all rows, some megabytes at a time."""
        part: list[RowChange] = []
        size = 0
        for table, columns in self._tables.items():
            for row_id, *values in self._db.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid"):  # noqa: S608
                change = RowChange(table, row_id, dict(zip(columns, values, strict=True)))
                part.append(change)
                size += size_of(change)
                if size >= PART_BYTES:
                    yield tuple(part)
                    part, size = [], 0
        if part:
            yield tuple(part)

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise BrokerPersistenceError(
                    f"{self._path} cannot be used ({error}): see to the disk of the data directory"
                ) from None
            raise

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def size_of(row: RowChange) -> int:
    """Return about how many bytes a row takes in an object."""
    values: list[Any] = list((row.values or {}).values())
    return 16 + sum(len(value) if isinstance(value, str | bytes) else 8 for value in values)
