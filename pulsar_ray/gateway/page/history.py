"""Remembers the figures of the last minutes, which plots begin with."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

EVERY_S = 5.0
KEPT_S = 300.0
POINTS = int(KEPT_S / EVERY_S)
TOPICS = 1000
"""How many topics one look asks for, those with the most messages first."""
MOST_TOPICS = 2 * TOPICS
SHARE = 0.01
"""The part of the time that goes into looking: more topics, fewer looks."""


class History:
    """Remembers the figures of the busiest topics; not more of them than `most_topics`."""

    def __init__(self, most_topics: int = MOST_TOPICS) -> None:
        self._most = most_topics
        self._points: OrderedDict[str, deque[tuple[float, float, float, int]]] = OrderedDict()

    def note(self, now_s: float, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take the rows of an overview.

        The topics that were not seen for longest make room.
        """
        for row in rows:
            points = self._points.setdefault(row["name"], deque(maxlen=POINTS))
            points.append((now_s, row["msgRateIn"], row["msgRateOut"], row["msgBacklog"] or 0))
            self._points.move_to_end(row["name"])
        while self._points:
            oldest = next(iter(self._points))
            if len(self._points) <= self._most and self._points[oldest][-1][0] > now_s - KEPT_S:
                return
            del self._points[oldest]

    def of(self, topic: str, now_s: float) -> dict[str, list[float]]:
        """Return the points of a topic: times in seconds since 1970, rates and backlogs."""
        points = [point for point in self._points.get(topic, ()) if point[0] > now_s - KEPT_S]
        names = ("at", "in", "out", "backlog")
        return {name: [point[place] for point in points] for place, name in enumerate(names)}


def pause_s(took_s: float) -> float:
    """Return how long to wait behind a look that took so long."""
    return max(EVERY_S, took_s / SHARE)
