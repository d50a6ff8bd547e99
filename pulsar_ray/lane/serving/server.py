"""Where an actor's clients connect: a Unix socket always, a TCP port when asked for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import secrets
import socket
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pulsar_ray.closed_places import is_trusted_user, make_closed_directory
from pulsar_ray.errors import (
    AuthorizationError,
    InvalidConfiguration,
    PulsarException,
    TooManyConnections,
)
from pulsar_ray.format.block_memory import BlockMemory
from pulsar_ray.lane.address import (
    LaneAddress,
    PeerCredentials,
    TcpAddress,
    UnixAddress,
    configure_socket,
    is_abandoned,
    peer_credentials,
)
from pulsar_ray.lane.handshake import HelloFields, LaneLimits, SessionDecision, encode_error
from pulsar_ray.lane.serving.server_lane import LaneHandler, ReceiveBudget, ServerLane
from pulsar_ray.session.packet import STAGING_BYTES

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


# Where there are too many, the oldest that has not proved itself goes.

T = TypeVar("T", bound=Hashable)

_FILES_PER_LANE = 2
"""A socket, and the pidfd that shows the death of its peer."""
_MOST_UNPROVEN = 2048


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The bounds on one actor's connections.

    Half of its files stay for its data and for Ray.
    """

    proven: int
    """Clients that have shown their token, by whatever carrier they are connected."""
    unproven: int
    """Connections that have not yet: an eighth of the files."""
    unproven_of_peer: int
    """Of one process or one host."""

    @classmethod
    def of(cls, file_limit: int) -> ConnectionLimits:
        """The bounds for a process that may open so many files."""
        unproven = max(8, min(_MOST_UNPROVEN, file_limit // 8))
        return cls(max(8, file_limit * 3 // 8 // _FILES_PER_LANE), unproven, max(4, unproven // 2))


def file_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def raise_file_limit() -> None:
    """Let this process open as many files as an unprivileged one may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a hard limit above what the kernel has by now
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class UnprovenConnections(Generic[T]):
    """Connections that have not shown their token, in the order in which they came."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._peers: dict[T, Hashable] = {}
        self._by_peer: dict[Hashable, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def add(self, connection: T, peer: Hashable) -> T | None:
        """A connection came.

        The oldest one of its peer, or of all, is returned where there are too many: it is forgotten and has
        to go.
        """
        of_peer = self._by_peer.setdefault(peer, {})
        oldest = None
        if len(of_peer) >= self._limits.unproven_of_peer:
            oldest = next(iter(of_peer))
        elif len(self._peers) >= self._limits.unproven:
            oldest = next(iter(self._peers))
        of_peer[connection] = None
        self._peers[connection] = peer
        if oldest is not None:
            self.remove(oldest)
        return oldest

    def remove(self, connection: T) -> None:
        """A connection is proven, or gone; harmless for one that is not here."""
        if connection not in self._peers:
            return
        peer = self._peers.pop(connection)
        of_peer = self._by_peer[peer]
        del of_peer[connection]
        if not of_peer:
            del self._by_peer[peer]


_MAX_SOCKET_PATH_BYTES = 107
_BACKLOG = 512
_CHECKS_PER_DEADLINE = 8
_KEPT_BYTES = 16 * 1024 * 1024
"""Of buffers for large packets that wait to be used again."""


class LaneServer:
    """Accepts lanes on the owner loop and gives their packets to the handler.

    `token_check` is asked once per lane; it answers with the session or raises the PulsarException to refuse
    with, and compares tokens in constant time. On Unix sockets only peers of the same user, and root, get as
    far. `connection_limits` bounds the connections that have not got there yet: the oldest goes. All methods
    belong to the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        directory: str | Path,
        *,
        node_address: str,
        token_check: Callable[[HelloFields], SessionDecision],
        handler: LaneHandler,
        limits: LaneLimits | None = None,
        credentials: Callable[[socket.socket], PeerCredentials | None] = peer_credentials,
    ) -> None:
        self.loop = loop
        self.limits = limits or LaneLimits()
        self.token_check = token_check
        self.connection_limits = ConnectionLimits.of(file_limit())
        self._credentials = credentials
        self._unproven: UnprovenConnections[ServerLane] = UnprovenConnections(self.connection_limits)
        self.budget = ReceiveBudget(self.limits.received_bytes, self.limits.lane_received_bytes)
        # A parser keeps nothing in it between two reads, and reads on one loop follow each other.
        self.staging = bytearray(STAGING_BYTES)
        self.memory = BlockMemory(_KEPT_BYTES)
        self.unix_address: UnixAddress | None = None
        self.tcp_address: TcpAddress | None = None
        self.is_closing = False
        self._directory = Path(directory)
        self._node_address = node_address
        self._handler = handler
        self._listeners: list[Listener] = []
        self.welcoming: set[asyncio.Task[None]] = set()
        """Tasks that make lanes of accepted connections; they are not to be cancelled."""
        self._lanes: set[ServerLane] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None
        deadlines = (self.limits.hello_s, self.limits.packet_s, self.limits.write_s)
        self._sweep_s = min(deadlines) / _CHECKS_PER_DEADLINE

    @property
    def addresses(self) -> list[LaneAddress]:
        """Where clients can connect at the moment."""
        return [address for address in (self.unix_address, self.tcp_address) if address is not None]

    @property
    def lanes(self) -> list[ServerLane]:
        """Connections that exist or of which `on_closed` is due, those before their hello included."""
        return list(self._lanes)

    async def start(self) -> UnixAddress:
        """Listen on a new Unix socket in the directory, which nobody else may enter.

        Those of processes that are gone, which a kill leaves behind, are removed. Raises InvalidConfiguration
        if the path is too long for a socket, UntrustedPath if the directory is somebody else's.
        """
        if self.unix_address is not None:
            return self.unix_address
        path = self._directory / f"{os.getpid()}-{secrets.token_hex(4)}"
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
            raise InvalidConfiguration(
                f"{path} is longer than the {_MAX_SOCKET_PATH_BYTES} bytes a Unix socket's path may have: "
                "choose a shorter directory"
            )
        make_closed_directory(self._directory)
        _remove_left_behind(self._directory)
        address = UnixAddress(str(path))
        sock = address.new_socket()
        sock.bind(address.target())
        self._listen(sock)
        self.unix_address = address
        return self.unix_address

    async def listen_tcp(self, ports: range | None = None) -> TcpAddress:
        """Listen on the node's address too, on a free port of `ports` (default: any).

        Repeats are harmless.

        Raises OSError when no port of the range is free.
        """
        if self.tcp_address is None:
            sock = self._bound_socket(ports or range(1))
            self._listen(sock)
            self.tcp_address = TcpAddress(self._node_address, sock.getsockname()[1])
        return self.tcp_address

    def _bound_socket(self, ports: range) -> socket.socket:
        for port in ports:
            sock = TcpAddress(self._node_address, port).new_socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if _is_bound(sock, self._node_address, port):
                return sock
            sock.close()
        raise OSError(errno.EADDRINUSE, f"no free port in {ports}")

    def _listen(self, sock: socket.socket) -> None:
        sock.listen(_BACKLOG)
        self._listeners.append(Listener(self.loop, sock, self._accepted))

    def _accepted(self, sock: socket.socket) -> None:
        task = self.loop.create_task(self._welcome(sock))
        self.welcoming.add(task)
        task.add_done_callback(self.welcoming.discard)

    async def _welcome(self, sock: socket.socket) -> None:
        """Make a lane of a new connection; the hello comes later."""
        lane = None
        try:
            configure_socket(sock)
            peer = self._credentials(sock)
            if self.is_closing or (peer is not None and not is_trusted_user(peer.uid)):
                self._refuse(sock, peer)
                return
            lane = ServerLane(self, self._handler, "tcp" if peer is None else "socket", peer)
            self._make_room(lane, sock.getpeername()[0] if peer is None else peer.pid)
            await self.loop.connect_accepted_socket(lambda: lane, sock)
        except OSError as error:
            # It is gone already, or this process is short of something: it connects again.
            logger.debug("a connection could not be taken: %s", error)
            if lane is not None:
                self._unproven.remove(lane)
            sock.close()

    def _refuse(self, sock: socket.socket, peer: PeerCredentials | None) -> None:
        if peer is not None and not self.is_closing:
            text = f"lanes of uid {os.geteuid()} are closed to uid {peer.uid}"
            with contextlib.suppress(OSError):
                sock.send(b"".join(encode_error(AuthorizationError(text))))
        sock.close()

    def _make_room(self, lane: ServerLane, peer: Hashable) -> None:
        limits = self.connection_limits
        oldest = self._unproven.add(lane, peer)
        if oldest is not None:
            oldest.close(
                TooManyConnections(
                    f"more than {limits.unproven} connections, or {limits.unproven_of_peer} of one "
                    "peer, have not said who they are, and the oldest is closed: the limit on open files "
                    "(ulimit -Hn, where Ray is started) leaves room for so many"
                )
            )

    async def close(self, error: PulsarException | None = None) -> None:
        """Stop listening, remove the socket and close every lane with `error`.

        Returns when they are gone.

        `on_closed` was called for each by then.
        """
        self.is_closing = True
        for listener in self._listeners:
            listener.close()
        if self.unix_address is not None:
            _remove(self.unix_address.path)
        if self.welcoming:
            await asyncio.wait(self.welcoming)
        for lane in list(self._lanes):
            lane.close(error)
        self._listeners.clear()
        if self._lanes:
            self._all_gone = self.loop.create_future()
            await self._all_gone

    def watch_deadlines(self) -> None:
        """A lane has a deadline running: look at all of them until none has."""
        if self._sweep is None:
            self._sweep = self.loop.call_later(self._sweep_s, self._check_deadlines)

    def lane_opened(self, lane: ServerLane) -> None:
        """Note a lane that is connected; called by the lane."""
        self._lanes.add(lane)
        self.watch_deadlines()

    def lane_proven(self, lane: ServerLane) -> None:
        """Note that a lane's client has shown its token; called by the lane."""
        self._unproven.remove(lane)

    def lane_ended(self, lane: ServerLane) -> None:
        """Note that a lane's connection is gone, and that its peer's fate is settled.

        Called by the lane.
        """
        self._lanes.discard(lane)
        self._unproven.remove(lane)
        if self._all_gone is not None and not self._lanes and not self._all_gone.done():
            self._all_gone.set_result(None)

    def _check_deadlines(self) -> None:
        self._sweep = None
        now = self.loop.time()
        watched = [lane for lane in list(self._lanes) if lane.check_deadlines(now)]
        if watched:
            self.watch_deadlines()


def _is_bound(sock: socket.socket, host: str, port: int) -> bool:
    try:
        sock.bind((host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _remove_left_behind(directory: Path) -> None:
    for path in directory.iterdir():
        pid, is_ours, _ = path.name.partition("-")
        # A process that cannot be seen from here may run in another container.
        if is_ours and pid.isdigit() and not _is_running(int(pid)) and is_abandoned(path):
            _remove(str(path))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
