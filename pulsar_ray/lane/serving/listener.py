"""Accepts connections, also while the process or the machine is short of files or memory."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger(__name__)

PAUSE_S = 0.5
_AT_ONCE = 64
"""Others on the loop get their turn in between."""


class Listener:
    """Gives the sockets of new connections to `accepted`, which owns them from then on.

    All on the loop.

    An event loop's own server closes its listening socket when a process has no file descriptor left. Here
    nothing is accepted for a moment, and the rest waits in the socket's backlog. The socket is listening.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, accepted: Callable[[socket.socket], None]
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._accepted = accepted
        self._pause: asyncio.TimerHandle | None = None
        self._is_short = False
        sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept nothing more and close the socket; repeats are harmless."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # EMFILE, ENFILE, ENOBUFS, ENOMEM; on Linux also errors of the one connection's network.
                self._wait_a_moment(error)
                return
            self._is_short = False
            connection.setblocking(False)
            self._accepted(connection)

    def _wait_a_moment(self, error: OSError) -> None:
        if not self._is_short:
            self._is_short = True
            logger.error(
                "no connection can be accepted: %s; trying again every %s s (ulimit -n bounds open files)",
                error,
                PAUSE_S,
            )
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(PAUSE_S, self._listen)
