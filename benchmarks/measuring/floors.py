"""The same work without us: a durable append, a Ray call, a raw socket."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import ray


class DurableFile:
    """Plain append + fdatasync, in a file of its own beside the broker's."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def append(self, data: Any) -> None:
        """Durable when it returns."""
        os.write(self._fd, data)
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


_RELAY = """
import os, sys
take, give = int(sys.argv[1]), int(sys.argv[2])
file = os.open(sys.argv[3], os.O_WRONLY) if len(sys.argv) > 3 else None
while data := os.read(take, 65536):
    if file is not None:
        if os.lseek(file, 0, os.SEEK_CUR) + len(data) > os.fstat(file).st_size:
            os.lseek(file, 0, os.SEEK_SET)
        os.write(file, data)
        os.fdatasync(file)
    os.write(give, data)
"""


class DurableRelay:
    """A message to another process, which syncs it to a disk, and back, perhaps by way of a third one.

    It is the least that a broker in a process of its own takes: no message is looked at. The file was written
    before, so that its length does not change.
    """

    def __init__(self, path: Path, *, is_passed_on: bool = False) -> None:
        path.write_bytes(bytes(8 << 20))
        ours, first = socket.socketpair()
        self._sock = ours
        self._processes: list[subprocess.Popen[bytes]] = []
        back = first
        if is_passed_on:
            taking, back = socket.socketpair()
            self._last, last = socket.socketpair()
            self._start(taking, last)
            taking.close()
            last.close()
        else:
            self._last = ours
        self._start(first, back, path)
        first.close()
        back.close()

    def _start(self, take: socket.socket, give: socket.socket, *path: Path) -> None:
        fds = take.fileno(), give.fileno()
        command = [sys.executable, "-c", _RELAY, *map(str, fds), *map(str, path)]
        self._processes.append(subprocess.Popen(command, pass_fds=fds))

    def send(self, data: bytes) -> None:
        """Send a message and wait until it comes back, synced."""
        self._sock.sendall(data)
        self._last.recv(65536)

    def close(self) -> None:
        """End the other processes."""
        self._sock.close()
        self._last.close()
        for process in self._processes:
            process.wait(10)


class _Echo:
    def nothing(self) -> None:
        """The empty call."""

    def take(self, batch: Any) -> int:
        """A call with an argument."""
        return len(batch)

    def pid(self) -> int:
        return os.getpid()


def empty_actor() -> Any:
    """A bare actor on the same Ray, warmed up."""
    decorate: Any = ray.remote(num_cpus=0)
    actor = decorate(_Echo).remote()
    for _ in range(20):
        ray.get(actor.nothing.remote())
    return actor


class _AsyncEcho:
    @ray.method(concurrency_group="data")
    async def exchange(self, _packet: bytes) -> bytes:
        """A call that takes a message and brings a receipt."""
        return _RECEIPT


_RECEIPT = bytes(60)


def exchanging_actor() -> Any:
    """A bare actor with what the Ray carrier needs of Ray: many calls that wait at once, each with bytes."""
    remote: Any = ray.remote
    decorate = remote(num_cpus=0, concurrency_groups={"data": 1000})
    actor = decorate(_AsyncEcho).remote()
    for _ in range(20):
        ray.get(actor.exchange.remote(b""))
    return actor


def restarting_actor() -> Any:
    """A bare actor that Ray starts again whenever it dies."""
    decorate: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
    actor = decorate(_Echo).remote()
    ray.get(actor.nothing.remote())
    return actor


_SINK = """
import socket, struct, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(1)
print("listening", flush=True)
sock, _ = listener.accept()
header = bytearray(8)
body = bytearray(64 << 20)
def fill(view):
    while len(view):
        count = sock.recv_into(view)
        if not count:
            sys.exit()
        view = view[count:]
target = open(sys.argv[2], "r+b", buffering=0) if len(sys.argv) > 2 else None
while True:
    fill(memoryview(header))
    length = struct.unpack("<Q", header)[0]
    view = memoryview(body)[:length]
    fill(view)
    if target is not None:
        target.seek(0)
        target.write(view)
    sock.sendall(header)
"""


class SocketSink:
    """Another process that takes whole buffers over a Unix socket and answers each with 8 bytes."""

    def __init__(self, directory: Path) -> None:
        path = directory / "sink.sock"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SINK, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.connect(str(path))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    def send_all(self, buffers: Sequence[Any], outstanding: int) -> None:
        """Write all buffers, so many ahead of their answers; all are answered when it returns."""
        for sent, buffer in enumerate(buffers):
            if sent >= outstanding:
                self.answered()
            self.send(buffer)
        for _ in range(min(outstanding, len(buffers))):
            self.answered()

    def send(self, buffer: Any) -> None:
        """Write one buffer; its answer is to be taken by `answered`."""
        view = memoryview(buffer).cast("B")
        self._sock.sendall(struct.pack("<Q", view.nbytes))
        self._sock.sendall(view)

    def answered(self) -> None:
        """Wait for the answer to the oldest buffer that has none."""
        left = 8
        while left:
            left -= len(self._sock.recv(left))

    def __enter__(self) -> SocketSink:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._sock.close()
        self._process.wait(10)
