"""Addresses lanes, makes sockets to them, and knows the process at their other end."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.closed_places import is_trusted_user
from pulsar_ray.errors import UntrustedPath
from pulsar_ray.kernel_calls import pidfd_open

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


_CREDENTIALS = struct.Struct("iII")


class PeerCredentials(NamedTuple):
    """A peer's process and user as of connecting.

    The pid is 0 when it cannot be seen from here (another pid namespace).
    """

    pid: int
    uid: int


def peer_credentials(sock: socket.socket) -> PeerCredentials | None:
    """The kernel's word on a Unix socket's peer; None for TCP, where there is none."""
    if sock.family != socket.AF_UNIX:
        return None
    pid, uid, _ = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return PeerCredentials(pid, uid)


def check_listener(sock: socket.socket, path: str | Path, *also_trusted: int) -> None:
    """Raise UntrustedPath if who listens on a connected Unix socket is another user.

    To be called before anything is sent. Root is trusted, and so are the users in `also_trusted`. A socket of
    another kind passes. Raises OSError if nobody has taken the connection.
    """
    # A signal may end `connect` before there was room in the listener's backlog: for Python it is connected.
    sock.getpeername()
    peer = peer_credentials(sock)
    if peer is not None and not is_trusted_user(peer.uid) and peer.uid not in also_trusted:
        raise UntrustedPath(
            f"user {peer.uid} listens on {path}, where a process of user {os.geteuid()} should: nothing is "
            "sent there"
        )


def is_abandoned(path: str | Path) -> bool:
    """Whether nobody listens on a Unix socket any more, in whatever container."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


class PeerWatch:
    """Calls `on_death` on the loop once the process is gone.

    Within a millisecond of a SIGKILL.

    End of file would not do: a forked child keeps its parent's socket open, and a cut connection is no dead
    client. Without a visible pid it never calls.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, on_death: Callable[[], None]) -> None:
        self._loop = loop
        self._on_death = on_death
        self._pidfd = _open_pidfd(pid)
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, self._died)

    @property
    def is_watching(self) -> bool:
        """True until the death was reported or `close` was called."""
        return self._pidfd is not None

    def close(self) -> None:
        """Stop watching."""
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _died(self) -> None:
        self.close()
        self._on_death()


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (state T).

    False for one that is gone.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    # The state follows the name, which stands in parentheses and may hold some itself.
    return status.rpartition(b")")[2].split()[:1] == [b"T"]


def _open_pidfd(pid: int) -> int | None:
    if pid <= 0:
        return None
    try:
        return pidfd_open(pid)
    except OSError:  # gone already, or not visible from here: end of file has to tell
        return None


# Ray makes the directories of its sessions writable for everybody, so that anybody could move what lies there
# and put something else in its place. This one is below `/tmp`, whose sticky bit keeps others from moving it,
# and its name is short, for a Unix socket's path has 107 bytes.


def user_directory() -> Path:
    """The directory, which `make_closed_directory` makes and checks."""
    return Path(f"/tmp/pulsar-ray-{os.geteuid()}")  # noqa: S108 - it is closed, and checked before each use
