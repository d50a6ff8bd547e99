"""Which metrics and labels a PromQL expression names, as far as the dashboard's and the alerts' need it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pulsar_ray.model.metric_catalogue import ALL_METRICS, Metric

LABELS_OF_RAY = {"SessionName"}
"""Labels that Ray puts to every metric, of which our queries use these."""
_BY_SERIES = {name: metric for metric in ALL_METRICS for name in metric.series_names}
_SERIES = re.compile(r"\b(ray_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def series_of(expr: str) -> Iterator[tuple[str, str]]:
    """The series of Ray's endpoint that the expression names, each with the text of its matchers."""
    for match in _SERIES.finditer(expr):
        yield match[1], match[2] or ""


def metrics_of(expr: str) -> set[Metric]:
    """The catalogue's metrics that the expression names; KeyError for a name that is not in it."""
    return {_BY_SERIES[name] for name, _ in series_of(expr)}


def unknown_names(expr: str) -> list[str]:
    """Series that the catalogue has not, and labels that none of the expression's metrics has."""
    unknown = [name for name, _ in series_of(expr) if name not in _BY_SERIES]
    if unknown:
        return unknown
    every: set[str] = set()
    for name, matchers in series_of(expr):
        labels = {*_BY_SERIES[name].labels, *LABELS_OF_RAY}
        every |= labels | ({"le"} if name.endswith("_bucket") else set())
        unknown += [f"{name}{{{label}}}" for label in _MATCHER.findall(matchers) if label not in labels]
    groups = (label.strip() for group in _GROUPING.findall(expr) for label in group.split(","))
    return unknown + [label for label in groups if label not in every]
