"""What a client process saw, written so that its death loses nothing: a system call for each record."""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pulsar_ray.model.message_id import MessageId

Id = tuple[int, int, int, int]
"""(partition, ledger id, entry id, batch index): the order of the log."""


class Record(NamedTuple):
    """`at_ns` is of a clock that all processes of the machine share."""

    at_ns: int
    kind: str
    values: list[Any]


class Journal:
    """The writing end; safe in any thread."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        weakref.finalize(self, os.close, self._fd)

    def write(self, kind: str, *values: Any) -> None:
        os.write(self._fd, json.dumps([time.monotonic_ns(), kind, *values]).encode() + b"\n")


def read_journal(path: Path) -> Iterator[Record]:
    """The whole records of a journal, which may be growing."""
    records, _ = read_on(path, 0)
    yield from records


def iterate_journal(path: Path) -> Iterator[Record]:
    """The whole records of a journal that does not grow any more, one in memory at a time."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield _record(line)


def read_on(path: Path, start: int) -> tuple[list[Record], int]:
    """The whole records from this byte on, and where the next one will begin."""
    if not path.exists():
        return [], start
    with open(path, "rb") as file:
        file.seek(start)
        lines = file.read().split(b"\n")
    records = []
    for line in lines[:-1]:
        records.append(_record(line))
        start += len(line) + 1
    return records, start


def _record(line: bytes) -> Record:
    at_ns, kind, *values = json.loads(line)
    return Record(at_ns, kind, values)


def id_of(message_id: MessageId) -> Id:
    return (
        message_id.partition(),
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.batch_index(),
    )
