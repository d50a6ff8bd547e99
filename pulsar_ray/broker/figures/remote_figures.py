"""Makes figures of a store's journal in an object store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.journal.remote_state import problem_of
from pulsar_ray.model import metric_catalogue as metrics

_GAUGES = {
    metrics.REMOTE_LAG_SECONDS.name: "lagSeconds",
    metrics.REMOTE_WAITING_BYTES.name: "waitingBytes",
    metrics.OFFLOAD_CACHE_BYTES.name: "cacheBytes",
}
_COUNTERS = {
    metrics.REMOTE_PUTS.name: "puts",
    metrics.REMOTE_PUT_BYTES.name: "putBytes",
    metrics.REMOTE_GETS.name: "gets",
    metrics.REMOTE_LISTS.name: "lists",
    metrics.REMOTE_ERRORS.name: "errors",
    metrics.OFFLOAD_CACHE_HITS.name: "cacheHits",
    metrics.OFFLOAD_CACHE_MISSES.name: "cacheMisses",
}


def remote_figures(status: Mapping[str, Any] | None, lag_bound_seconds: float) -> Figures:
    """Return what a journal's status says in figures; none without an object store.

    A journal that could not begin yet has no counts, and is away.
    """
    if status is None:
        return Figures()
    is_ended = bool(status.get("isEnded"))
    gauges = {name: float(status[key]) for name, key in _GAUGES.items() if key in status}
    gauges[metrics.REMOTE_LAG_BOUND_SECONDS.name] = lag_bound_seconds
    gauges[metrics.REMOTE_ENDED.name] = float(is_ended)
    gauges[metrics.REMOTE_AWAY.name] = float(bool(problem_of(status)) and not is_ended)
    return Figures({name: float(status[key]) for name, key in _COUNTERS.items() if key in status}, gauges)
