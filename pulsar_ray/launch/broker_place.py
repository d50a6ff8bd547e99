"""Looks whether programs can still find the embedded broker of this process.

They find it by files in its data directory, which anybody may remove: a test's fixture, or `rm`. A broker
that nobody can find serves nobody, and would live for ever.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.launch.embedded import (
    CLIENTS_LOCK,
    RECORD,
    EmbeddedRecord,
    StartLock,
    has_clients,
    prepare_run_directory,
    remove_record,
    run_directory,
    withdraw_record,
    write_record,
)

ERRORS_FOR_S = 3.0
"""So long a disk may answer with errors before its broker ends."""


class BrokerPlace:
    """Knows the files by which programs find this process's broker.

    They are its data directory, its record and the lock of its clients. Raises what is wrong with the
    directory, as `prepare_run_directory` does.
    """

    def __init__(self, data_dir: Path) -> None:
        prepare_run_directory(data_dir)
        self._data_dir = data_dir
        self._starts = StartLock(data_dir)
        self._known = {data_dir: _identity(data_dir)}
        self._failing_since_s: float | None = None

    def offer(self, address: str, dashboard_url: str) -> EmbeddedRecord:
        """Let programs find the broker. Raises BrokerPersistenceError if that cannot be written."""
        try:
            has_clients(self._data_dir)  # makes the lock's file
            record = write_record(self._data_dir, address, dashboard_url)
            run = run_directory(self._data_dir)
            self._known |= {path: _identity(path) for path in (run / CLIENTS_LOCK, run / RECORD)}
        except OSError as error:
            raise self._failed(error) from None
        return record

    def is_used(self, now_s: float) -> bool:
        """Whether any program is on the broker.

        Raises BrokerPersistenceError if no program can find it any more, and once the disk has answered with
        errors for some seconds.
        """
        if lost := self.why_lost():
            raise BrokerPersistenceError(f"{lost}: no program finds the broker of {self._data_dir} any more")
        try:
            is_used = has_clients(self._data_dir)
        except OSError as error:
            if self._failing_since_s is None:
                self._failing_since_s = now_s
            if now_s - self._failing_since_s >= ERRORS_FOR_S:
                raise self._failed(error) from None
            return True
        self._failing_since_s = None
        return is_used

    def withdraw(self) -> bool:
        """Take the record back unless a program is on the broker.

        Returns True if it is gone. Nobody starts another broker until this process has ended then. Raises
        BrokerPersistenceError if the disk does not let it.
        """
        try:
            self._starts.acquire()
            if withdraw_record(self._data_dir):
                return True
        except OSError as error:
            raise self._failed(error) from None
        self._starts.release()
        return False

    def leave(self) -> None:
        """Take the record back, whoever is on the broker, if it is still this broker's."""
        if not self.why_lost():
            with contextlib.suppress(OSError):
                self._starts.acquire()
                remove_record(self._data_dir)

    def why_lost(self) -> str:
        """Say what has been removed or replaced; "" while programs find the broker."""
        for path, known in self._known.items():
            try:
                found = _identity(path)
            except (FileNotFoundError, NotADirectoryError):
                return f"{path} has been removed"
            except OSError:  # the disk is asked for more right after this
                continue
            if found != known:
                return f"{path} has been replaced"
        return ""

    def has_data(self) -> bool:
        """Whether the data directory is still there, by whatever files it is found."""
        try:
            return _identity(self._data_dir) == self._known[self._data_dir]
        except OSError:
            return False

    def _failed(self, error: OSError) -> BrokerPersistenceError:
        return BrokerPersistenceError(f"the disk of {self._data_dir} answers with errors: {error}")


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
