"""As little of a Redis client as a comparison with Redis Streams needs."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

MESSAGE = b"x" * 1024
STREAM, GROUP, CONSUMER = b"bench", b"group", b"consumer"
PIPELINED = 100
START_DEADLINE_S = 10.0


class RedisStream:
    """A redis-server of our own that syncs every write, and one stream with a consumer group."""

    def __init__(self, directory: Path) -> None:
        path = directory / "redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--dir", str(directory),
                   "--appendonly", "yes", "--appendfsync", "always", "--save", ""]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._sock = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + START_DEADLINE_S
        while self._sock.connect_ex(os.fspath(path)) != 0:
            if time.monotonic() > deadline:
                raise TimeoutError("redis-server did not start")
            time.sleep(0.02)
        self._replies = self._sock.makefile("rb")
        self._ask([b"XGROUP", b"CREATE", STREAM, GROUP, b"$", b"MKSTREAM"])

    def put(self) -> None:
        """One message, synced."""
        self._ask([b"XADD", STREAM, b"*", b"v", MESSAGE])

    def take(self) -> None:
        """One message, acknowledged."""
        self._take(1)

    def put_many(self, count: int) -> None:
        """Pipelined."""
        for _ in range(0, count, PIPELINED):
            self._sock.sendall(_encode([b"XADD", STREAM, b"*", b"v", MESSAGE]) * PIPELINED)
            for _ in range(PIPELINED):
                self._reply()

    def take_many(self, count: int) -> None:
        """A hundred at a time, acknowledged together."""
        for _ in range(0, count, PIPELINED):
            self._take(PIPELINED)

    def _take(self, count: int) -> None:
        read = [b"XREADGROUP", b"GROUP", GROUP, CONSUMER, b"COUNT", b"%d" % count, b"STREAMS", STREAM, b">"]
        ids = [entry[0] for entry in self._ask(read)[0][1]]
        self._ask([b"XACK", STREAM, GROUP, *ids])

    def _ask(self, words: list[bytes]) -> Any:
        self._sock.sendall(_encode(words))
        return self._reply()

    def _reply(self) -> Any:
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self._replies.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        return rest

    def __enter__(self) -> RedisStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        self._process.terminate()
        self._process.wait(10)


def _encode(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
