"""Where lanes are reached, and the sockets to get there."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

KEEPALIVE_IDLE_S = 5
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_PROBES = 4
USER_TIMEOUT_MS = 13_000

_TIMEVAL = struct.Struct("@ll")


class UnixAddress(NamedTuple):
    """A socket in the file system of the node."""

    path: str

    @property
    def kind(self) -> str:
        """The carrier's name in settings and statistics."""
        return "socket"

    def new_socket(self) -> socket.socket:
        """An unconnected socket for this address."""
        return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def target(self) -> str:
        """The argument for `socket.connect`."""
        return self.path

    def __str__(self) -> str:
        return f"unix:{self.path}"


class TcpAddress(NamedTuple):
    """A port on a node's address."""

    host: str
    port: int

    @property
    def kind(self) -> str:
        """The carrier's name in settings and statistics."""
        return "tcp"

    def new_socket(self) -> socket.socket:
        """An unconnected socket for this address."""
        return socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)

    def target(self) -> tuple[str, int]:
        """The argument for `socket.connect`."""
        return (self.host, self.port)

    def __str__(self) -> str:
        return f"tcp:{self.host}:{self.port}"


LaneAddress = UnixAddress | TcpAddress


def set_kernel_timeout(sock: socket.socket, option: int, timeout_s: float) -> None:
    """Bound a blocking socket's single system calls (SO_SNDTIMEO, SO_RCVTIMEO);

    they then fail with EAGAIN.
    """
    seconds = int(timeout_s)
    sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, int((timeout_s - seconds) * 1e6)))


def configure_socket(sock: socket.socket) -> None:
    """Set the options that both ends of a TCP lane want.

    A Unix socket is left as it is.

    Nothing waits for full segments, and a peer that vanished is noticed within 13 s, both idle (keepalive)
    and while something waits to be acknowledged (user timeout). Larger buffers make large packets on a Unix
    socket four times slower: 550 MB/s with 256 KiB and more, 2,100 with the kernel's own 208 KiB.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
