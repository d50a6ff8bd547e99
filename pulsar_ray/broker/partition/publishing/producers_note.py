"""Keeps in a partition's directory which producers are connected, for its next life (ADR 0103).

The note is no part of the data: it is written without being forced to the disk, so it outlasts the
partition's process, and not its machine. Where it is lost or damaged nobody is awaited.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.ledger.disk import Disk, write_fully

logger = logging.getLogger(__name__)

NOTE = "producers"


class KnownProducer(NamedTuple):
    """A connected producer, as its client knows it."""

    incarnation: int
    client_id: str
    producer_id: int
    """Unique in the client."""


_Line = tuple[str, KnownProducer | None]
"""None: the producer is gone."""
LEAST_REWRITTEN = 1000
"""So many lines are appended in any case before the note is written anew."""


class ProducersNote:
    """Notes who comes and goes, with a line for each that the disk thread writes.

    `noted` begins with those that were connected when the partition's process ended.
    """

    def __init__(self, directory: Path, disk: Disk, thread: DiskThread) -> None:
        self._path = directory / NOTE
        self._disk = disk
        self._thread = thread
        # Whether the file says all, and what is appended to it is a line of its own.
        self.noted, self._lines, self._is_whole = _read(self._path)
        self._is_refused = False
        self._unwritten = 0

    def opened(self, name: str, known: KnownProducer) -> None:
        """Note a producer."""
        if self.noted.get(name) != known:
            self.noted[name] = known
            self._write((name, known))

    def closed(self, name: str) -> None:
        """Note that a producer is gone."""
        if self.noted.pop(name, None) is not None:
            self._write((name, None))

    def when_written(self, then: Callable[[], None]) -> None:
        """Call `then` once all that was noted so far is written.

        At once if it is. The disk may have refused it.
        """
        if self._unwritten:
            self._thread.submit(lambda: None, lambda *_: then())
        else:
            then()

    def remove(self) -> None:
        """Forget everybody; behind what was noted before."""
        self.noted.clear()
        self._lines = 0
        self._unwritten += 1
        self._thread.submit(lambda: self._path.unlink(missing_ok=True), self._reported)

    def _write(self, line: _Line) -> None:
        self._lines += 1
        is_new = not self._is_whole or self._lines > max(LEAST_REWRITTEN, 2 * len(self.noted))
        lines: list[_Line] = [*self.noted.items()] if is_new else [line]
        self._lines = len(lines) if is_new else self._lines
        self._is_whole = True
        self._unwritten += 1
        self._thread.submit(lambda: self._put(_encoded(lines), is_new=is_new), self._reported)

    def _put(self, lines: bytes, *, is_new: bool) -> None:
        path = self._path.with_suffix(".new") if is_new else self._path
        begins = os.O_TRUNC if is_new else os.O_APPEND
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | begins)
        try:
            write_fully(self._disk, fd, lines)
        finally:
            self._disk.close(fd)
        if is_new:
            self._disk.rename(path, self._path)

    def _reported(self, _: None, error: BaseException | None) -> None:
        self._unwritten -= 1
        # Of a line that was refused a part may be there.
        self._is_whole &= error is None
        if error is not None and not self._is_refused:
            logger.warning(
                "%s cannot be written, so producers may lose their names in a restart: %s", self._path, error
            )
        self._is_refused = error is not None


def _encoded(lines: Iterable[_Line]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _read(path: Path) -> tuple[dict[str, KnownProducer], int, bool]:
    """Return the producers that are noted, by name, and how many lines that takes.

    And whether the last line is whole. Torn or damaged ones are passed over: a write may have ended in the
    middle.
    """
    noted: dict[str, KnownProducer] = {}
    try:
        content = path.read_bytes()
    except OSError:
        return {}, 0, True
    lines = content.splitlines()
    for line in lines:
        try:
            name, known = json.loads(line)
            if known is None:
                noted.pop(str(name), None)
            else:
                incarnation, client_id, producer_id = known
                noted[str(name)] = KnownProducer(int(incarnation), str(client_id), int(producer_id))
        except (ValueError, TypeError):
            continue
    return noted, len(lines), content.endswith(b"\n") or not content
