"""A look at Ray's own endpoint of metrics."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import ray

DEADLINE_S = 40.0
_SERIES = re.compile(r"(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+)\Z")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_OF_RAY = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}


class Scrape:
    """The broker's series in Ray's endpoint at one moment, without the labels that Ray adds."""

    def __init__(self) -> None:
        nodes: Any = ray.nodes
        (node,) = [node for node in nodes() if node["Alive"]]
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(address, timeout=DEADLINE_S) as answer:
            self.text = answer.read().decode()
        self.series: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for line in self.text.splitlines():
            match = _SERIES.match(line)
            if match and match["name"].startswith("ray_pulsar_ray_"):
                labels = {
                    name: value for name, value in _LABEL.findall(match["labels"]) if not _is_rays(name)
                }
                found = self.series.setdefault(match["name"], {})
                found[frozenset(labels.items())] = float(match["value"])

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the one series with exactly these labels."""
        return self.series.get(name, {}).get(frozenset(labels.items()))


def _is_rays(label: str) -> bool:
    return label in _OF_RAY or label.startswith("otel_scope")
