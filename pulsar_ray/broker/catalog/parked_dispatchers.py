"""Knows which dispatchers left while clients were attached, which come back to them. Pure."""

from __future__ import annotations

from collections.abc import Container

from pulsar_ray.broker.catalog.recent_names import RecentNames

SIGNAL_MS = 30_000
"""Time in which parked clients attach after a signal.

Those that are out of touch with the controller for so long attach by themselves.
"""


class ParkedDispatchers:
    """Keeps a partition awake until the clients that were signalled for it are back.

    Otherwise it could leave again with messages that their dispatchers have never seen, and nobody would
    signal them any more. Before `unsure_until_ms` every partition stays: a controller that died may have
    signalled clients, which nobody knows any more.
    """

    def __init__(self, unsure_until_ms: int | None = None) -> None:
        self._unsure_until_ms = unsure_until_ms
        self._parked: dict[str, set[str]] = {}
        self._signalled_ms: dict[str, int] = {}
        self._unsignalled = RecentNames(SIGNAL_MS)

    def left(self, partition: str, name: str) -> None:
        """A dispatcher of this name left while clients were attached."""
        self._parked.setdefault(partition, set()).add(name)
        self._signalled_ms.pop(partition, None)

    def signalled(self, partition: str, now_ms: int) -> None:
        """Clients of a partition's dispatchers were signalled: it is in use."""
        if partition in self._parked:
            self._signalled_ms[partition] = now_ms

    def forget(self, partition: str) -> None:
        """The partition is no more, or nobody comes back to it."""
        self._parked.pop(partition, None)
        self._signalled_ms.pop(partition, None)

    def unsignalled(self, partition: str, now_ms: int) -> None:
        """Note that clients may have something to learn of which no signal told them.

        Messages of a partition that was awake when its process and the controller died; the end of a
        subscription whose consumers were just about to park.
        """
        self._unsignalled.note(partition, now_ms)

    def is_unsignalled(self, partition: str, now_ms: int) -> bool:
        """Whether that was noted just now: parked clients may not have asked since."""
        noted_ms = self._unsignalled.noted_ms(partition)
        return noted_ms is not None and now_ms - noted_ms < SIGNAL_MS

    def are_awaited(self, partition: str, running: Container[str], now_ms: int) -> bool:
        """Whether a dispatcher is still to be started again for clients that were signalled."""
        if self._unsure_until_ms is not None and now_ms < self._unsure_until_ms:
            return True
        signalled_ms = self._signalled_ms.get(partition)
        if signalled_ms is None:
            return False
        parked = self._parked[partition]
        parked.difference_update({name for name in parked if name in running})
        if parked and now_ms - signalled_ms < SIGNAL_MS:
            return True
        self.forget(partition)
        return False
