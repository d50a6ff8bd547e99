"""The socket by which a probe asks a node's store for the broker's health.

A process that joins Ray costs more than a second of CPU, which is too much every few seconds. This costs a
connection: the socket lies in the data directory, which only the broker's user can enter, and answers each
connection with one line of JSON. It is no way in: nothing that is sent is read.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pulsar_ray.closed_places import bound_socket, short_socket_path
from pulsar_ray.errors import Timeout
from pulsar_ray.lane.address import check_listener

NAME = "health.sock"
MOST_BYTES = 16 * 1024 * 1024
BACKLOG = 64

Answer = dict[str, Any]


def ask_health(data_dir: Path, timeout_s: float) -> Answer | None:
    """Ask the store of a directory of this machine; None if none answers there.

    Raises Timeout if one is there and does not answer, UntrustedPath if another user listens there.
    """
    try:
        with short_socket_path(data_dir, NAME) as (path, owner), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(path)
            # Root may ask about a directory of any user's, and is answered by that user.
            also_trusted = (owner,) if os.geteuid() == 0 else ()
            check_listener(connection, data_dir / "run" / NAME, *also_trusted)
            received = _receive(connection, timeout_s)
    except TimeoutError:
        raise Timeout(f"the store of {data_dir} does not answer within {timeout_s:g} s") from None
    except OSError:
        return None
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError):  # it ended in the middle, or is no answer of ours
        return None
    return answer if isinstance(answer, dict) else None


def _receive(connection: socket.socket, timeout_s: float) -> bytearray:
    """Receive all up to the end, within the time for all of it.

    Root may be answered by anybody.

    Raises TimeoutError, OSError; also if it does not end.
    """
    deadline = time.monotonic() + timeout_s
    received = bytearray()
    while len(received) <= MOST_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(1 << 16)
        if not part:
            return received
        received += part
    raise OSError(errno.EMSGSIZE, f"an answer of more than {MOST_BYTES} bytes")


class HealthSocket:
    """Serves the socket of a store; askers at the same time share an answer."""

    def __init__(self, data_dir: Path, report: Callable[[], Awaitable[Answer]]) -> None:
        self._data_dir = data_dir
        self._report = report
        self._asking: asyncio.Task[Answer] | None = None
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        """Listen from now on; a socket that a former process left is replaced.

        Raises UntrustedPath if another user has made the directory, OSError.
        """
        listening = bound_socket(self._data_dir, NAME)
        try:
            self._server = await asyncio.start_unix_server(self._answer, sock=listening, backlog=BACKLOG)
        except BaseException:
            listening.close()
            raise

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.get_running_loop().create_task(self._ask())
            writer.write(json.dumps(await asyncio.shield(self._asking)).encode() + b"\n")
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _ask(self) -> Answer:
        return await self._report()

    def close(self) -> None:
        """Listen no more, and answer nobody who waits."""
        if self._asking is not None:
            self._asking.cancel()
        if self._server is not None:
            self._server.close()
