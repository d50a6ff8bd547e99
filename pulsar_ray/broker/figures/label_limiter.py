"""Bounds how many topics and subscriptions have labels of their own. Pure."""

from __future__ import annotations

from collections.abc import Container, Hashable
from urllib.parse import quote

from pulsar_ray.model.metric_catalogue import OTHER

MOST_LIVES = 4
"""Names that get labels while the process lives, in limits.

Those of deleted topics count."""
MAX_LABEL_CHARS = 200
"""Longer names have no labels of their own: each series repeats them."""
_AS_THEY_ARE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "").replace('"', "").replace("\\", "")


def label_text(name: str) -> str:
    """Return a name as a label's value.

    Ray takes ASCII only: the rest is escaped as in a URL. Quotes, backslashes and line ends are escaped as
    well, and `%` itself, so that no two names are alike.
    """
    return quote(name, safe=_AS_THEY_ARE)


class LabelLimiter:
    """Gives names labels, first come, first served; all others are `other`.

    A name keeps its label until it is released. Ray forgets no series of a living process, so released ones
    count on, and after four times the limit no more names get labels until the process starts anew.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._given: dict[Hashable, str] = {}
        self._ever: set[Hashable] = set()

    def label(self, key: Hashable, name: str, *, may_take: bool = True) -> str:
        """Return the label of what `key` stands for.

        With `may_take` it gets one of its own if there is room.
        """
        given = self._given.get(key)
        if given is not None:
            return given
        if not may_take or len(self._given) >= self._limit:
            return OTHER
        if key not in self._ever and len(self._ever) >= MOST_LIVES * self._limit:
            return OTHER
        text = label_text(name)
        if len(text) > MAX_LABEL_CHARS:
            return OTHER
        self._ever.add(key)
        self._given[key] = text
        return text

    def keep_only(self, keys: Container[Hashable]) -> None:
        """Release the labels of all others."""
        self._given = {key: text for key, text in self._given.items() if key in keys}
