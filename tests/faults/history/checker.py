"""Holds a recorded history against the broker's promises: each rule is one query over a database on disk.

Memory is bounded by the database's cache however long the run was. Judging a directory again gives the same
verdict.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.history.operations import KINDS, Operation, operation_of
from tests.faults.history.rules import RULES, STEPS
from tests.faults.journal import iterate_journal

SUFFIX = ".journal"
PLACE_COLUMNS = ["partition", "ledger", "entry", "batch"]
CACHE_KIB = 64 * 1024
ROWS_AT_ONCE = 10_000
EXAMPLES = 20


@dataclass(frozen=True)
class Violation:
    """A broken rule, how often it was broken, and the first cases of it."""

    rule: str
    count: int
    examples: list[dict[str, Any]]

    def __str__(self) -> str:
        cases = "".join(f"\n    {example}" for example in self.examples)
        return f"{self.rule}: {self.count}{cases}"


@dataclass(frozen=True)
class Verdict:
    """How many operations of each kind were judged, and every rule that they broke."""

    operations: Counter[str]
    violations: list[Violation]

    def __str__(self) -> str:
        lines = [f"{count:10,} {kind}" for kind, count in sorted(self.operations.items())]
        lines += [str(violation) for violation in self.violations] or ["no violation"]
        return "\n".join(lines)


def judge(directory: Path, clock_error_ms: int = 0) -> Verdict:
    """Check every journal of a directory.

    `clock_error_ms` is how far clocks were set forward in the run: a delayed message may be so much early.
    """
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        database = sqlite3.connect(Path(scratch) / "history.sqlite", isolation_level=None)
        try:
            return _judge(database, directory, clock_error_ms)
        finally:
            database.close()


def _judge(database: sqlite3.Connection, directory: Path, clock_error_ms: int) -> Verdict:
    database.row_factory = sqlite3.Row
    database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA temp_store = FILE")
    for name, kind in KINDS.items():
        columns = ["process", "at_ns"]
        for field in kind._fields:
            columns += PLACE_COLUMNS if field == "place" else [field]
        database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
    database.execute("CREATE TABLE limits (clock_error_ms)")
    database.execute("INSERT INTO limits VALUES (?)", (clock_error_ms,))
    counts: Counter[str] = Counter()
    waiting: dict[str, list[tuple[Any, ...]]] = {}
    database.execute("BEGIN")
    for process, at_ns, operation in _operations(directory):
        table = type(operation).__name__
        counts[table] += 1
        rows = waiting.setdefault(table, [])
        rows.append(_row(process, at_ns, operation))
        if len(rows) >= ROWS_AT_ONCE:
            _insert(database, table, rows)
    for table, rows in waiting.items():
        _insert(database, table, rows)
    database.execute("COMMIT")
    for step in STEPS:
        database.execute(step)
    return Verdict(
        counts, [found for rule, query in RULES.items() for found in _broken(database, rule, query)]
    )


def _broken(database: sqlite3.Connection, rule: str, query: str) -> Iterator[Violation]:
    count = 0
    examples: list[dict[str, Any]] = []
    for row in database.execute(query):
        count += 1
        if len(examples) < EXAMPLES:
            examples.append(dict(row))
    if count:
        yield Violation(rule, count, examples)


def _insert(database: sqlite3.Connection, table: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        rows.clear()


def _operations(directory: Path) -> Iterator[tuple[str, int, Operation]]:
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    if not paths:
        raise FileNotFoundError(f"{directory} has no file *{SUFFIX}: name the directory of a recorded run")
    for path in paths:
        for record in iterate_journal(path):
            operation = operation_of(record)
            if operation is not None:
                yield path.stem, record.at_ns, operation


def _row(process: str, at_ns: int, operation: Operation) -> tuple[Any, ...]:
    """The operation's values in its table."""
    row: list[Any] = [process, at_ns]
    for field, value in operation._asdict().items():
        if field == "place":
            row += [None] * len(PLACE_COLUMNS) if value is None else value
        else:
            row.append(value)
    return tuple(row)
