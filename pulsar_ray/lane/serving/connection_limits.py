"""Bounds the connections of an actor by the limit on open files.

Where there are too many, the oldest that has not proved itself goes.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

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
