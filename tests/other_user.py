"""Another user of the machine: a process that listens where a process of ours should."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SOMEBODY = 4101
ANYBODY = 4102
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two other users")

_LISTEN = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
listener.listen()  # whose socket it is, the kernel notes here
print("listens", flush=True)
connection, _ = listener.accept()
print(sum(map(len, iter(lambda: connection.recv(1 << 16), b""))), flush=True)
"""


class Listener:
    """A process of another user that takes one connection, and counts what is sent to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def received_bytes(self) -> int:
        """All that the one connection brought until its end."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@contextmanager
def listening(path: Path, uid: int = SOMEBODY) -> Iterator[Listener]:
    """Listen on a Unix socket as another user; ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _LISTEN, str(path), str(uid)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            yield Listener(process)
        finally:
            process.kill()
