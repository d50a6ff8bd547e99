"""Remembers for a while when names were noted. Pure."""

from __future__ import annotations

from collections import OrderedDict


class RecentNames:
    """Forgets what was noted longer ago than `kept_ms` when the next name is noted."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        self._noted_ms: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._noted_ms)

    def note(self, name: str, now_ms: int) -> None:
        """Note a name, in place of an earlier time of it."""
        noted = self._noted_ms
        noted[name] = now_ms
        noted.move_to_end(name)
        while now_ms - next(iter(noted.values())) > self._kept_ms:
            noted.popitem(last=False)

    def noted_ms(self, name: str) -> int | None:
        """When a name was noted last; None if that is long ago, or never was."""
        return self._noted_ms.get(name)
