"""A proxy between a lane's ends that cuts, stalls and slices the bytes.

Faults happen at the byte asked for.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from pulsar_ray.lane.address import LaneAddress, UnixAddress

UP = "up"
"""From the client to the server."""
DOWN = "down"
_CHUNK_BYTES = 64 * 1024


class LaneCutter:
    """Listens on a Unix socket of its own and passes bytes to and from `target`.

    Faults hold for connections that exist and for later ones, until `heal`. To a server every client behind
    it has the cutter's own process as its peer.
    """

    def __init__(self, target: LaneAddress, directory: Path) -> None:
        self.address = UnixAddress(str(directory / f"cutter-{os.urandom(4).hex()}"))
        self._target = target
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._cut_after: dict[str, int] = {}
        self._slice_bytes = _CHUNK_BYTES
        self._passing = threading.Event()
        self._passing.set()
        self._listener = self.address.new_socket()
        self._listener.bind(self.address.path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="lane-cutter", daemon=True).start()

    def __enter__(self) -> LaneCutter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connections(self) -> int:
        """Connections that have been made through it so far."""
        with self._lock:
            return len(self._links)

    def cut_after(self, direction: str, count: int) -> None:
        """Cut each connection after `count` more bytes in a direction (UP or DOWN)."""
        with self._lock:
            self._cut_after[direction] = count
            for link in self._links:
                link.passed[direction] = 0

    def cut_now(self) -> None:
        """Cut every connection there is; new ones are accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def stall(self) -> None:
        """Pass nothing on, but keep connections open, until `heal`."""
        self._passing.clear()

    def slice(self, count: int) -> None:
        """Pass on at most `count` bytes at a time."""
        self._slice_bytes = count

    def heal(self) -> None:
        """No more faults."""
        with self._lock:
            self._cut_after.clear()
        self._slice_bytes = _CHUNK_BYTES
        self._passing.set()

    def close(self) -> None:
        """Cut everything and accept nobody any more."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        Path(self.address.path).unlink(missing_ok=True)
        self._passing.set()
        self.cut_now()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = self._target.new_socket()
            try:
                server.connect(self._target.target())
            except OSError:
                client.close()
                server.close()
                continue
            link = _Link(client, server)
            with self._lock:
                self._links.append(link)
            for direction, source, sink in ((UP, client, server), (DOWN, server, client)):
                threading.Thread(target=self._pass, args=(link, direction, source, sink), daemon=True).start()

    def _pass(self, link: _Link, direction: str, source: socket.socket, sink: socket.socket) -> None:
        try:
            while not link.is_cut:
                data = source.recv(self._slice_bytes)
                self._passing.wait()
                allowed, is_last = self._allowed(link, direction, len(data))
                sink.sendall(data[:allowed])
                if is_last or not data:
                    break
        except OSError:  # the other direction was quicker
            pass
        finally:
            link.cut()

    def _allowed(self, link: _Link, direction: str, count: int) -> tuple[int, bool]:
        """How many of the bytes may pass, and whether they are the connection's last."""
        with self._lock:
            limit = self._cut_after.get(direction)
            if limit is None:
                return count, False
            allowed = min(count, limit - link.passed[direction])
            link.passed[direction] += allowed
            return allowed, link.passed[direction] >= limit


class _Link:
    """One client's connection and the one made for it."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.passed = {UP: 0, DOWN: 0}
        self.is_cut = False
        self._sockets = (client, server)
        self._lock = threading.Lock()

    def cut(self) -> None:
        """Close both sides at once; what was not passed on is lost."""
        with self._lock:
            if self.is_cut:
                return
            self.is_cut = True
            for sock in self._sockets:
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:  # gone already
                    pass
                sock.close()
