"""Asks Prometheus, Grafana and endpoints of metrics what they have."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_ray.model.metric_catalogue import PREFIX_OF_RAY

TIMEOUT_S = 3.0
_AT_ONCE = 32
GROUP = "pulsar_ray"
"""The name of our group of rules."""
_OWN_SERIES = f"{PREFIX_OF_RAY}pulsar_ray_"
_MOST_BYTES = 64 << 20
_NO_ANSWER = (OSError, ValueError, http.client.HTTPException)
"""Also what another service answers there, or a URL that is none."""

GRAFANA_VARIABLE = "RAY_GRAFANA_HOST"
"""Of Ray's own environment: where its Grafana answers."""


@dataclass(frozen=True)
class Service:
    """Whether a service answers: `problem` says why not."""

    url: str
    problem: str = ""


@dataclass(frozen=True)
class PrometheusState(Service):
    """`settings`: the file that it reads; `has_rules`: whether our alerts are in force there."""

    settings: Path | None = None
    has_rules: bool = False


@dataclass(frozen=True)
class Endpoint(Service):
    """`series`: how many of the broker's it exports now."""

    series: int = 0


def prometheus_state(url: str, *, reload: bool = False) -> PrometheusState:
    """Ask a Prometheus for its settings and rules.

    `reload`: have it read them anew before, if it lets us.
    """
    try:
        if reload:
            _reload(url)
        flags = _json(f"{url}/api/v1/status/flags")["data"]
        groups = _json(f"{url}/api/v1/rules")["data"]["groups"]
        has_rules = any(group["name"] == GROUP for group in groups)
        return PrometheusState(url, settings=Path(flags["config.file"]), has_rules=has_rules)
    except (*_NO_ANSWER, KeyError, TypeError) as error:
        return PrometheusState(url, problem=_said(error))


def _reload(url: str) -> None:
    try:
        _get(f"{url}/-/reload", method="POST")
    except urllib.error.HTTPError:
        # Without --web.enable-lifecycle, or it does not take its settings: its rules tell.
        return


def grafana_state(url: str) -> Service:
    """Ask a Grafana whether it works."""
    try:
        health = _json(f"{url}/api/health")
        return Service(url, "" if health.get("database") == "ok" else "its database does not work")
    except (*_NO_ANSWER, AttributeError) as error:
        return Service(url, _said(error))


def endpoints(urls: Sequence[str]) -> list[Endpoint]:
    """Ask the metrics of many nodes at the same time, in the same order."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        return list(threads.map(endpoint, urls))


def endpoint(url: str) -> Endpoint:
    """Count the broker's series in a node's metrics."""
    try:
        text = _get(url)
    except _NO_ANSWER as error:
        return Endpoint(url, _said(error))
    return Endpoint(url, series=sum(line.startswith(_OWN_SERIES.encode()) for line in text.splitlines()))


def own_metrics(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return the broker's own series of many nodes, as Prometheus reads them.

    And why nodes have not answered, whose series are missing.
    """
    kept, problems = _Families(), []
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        for url, asked in [(url, threads.submit(_get, url)) for url in urls]:
            try:
                kept.add(asked.result().decode())
            except _NO_ANSWER as error:
                problems.append(f"{url}: {_said(error)}")
    return kept.text(), problems


class _Families:
    """Puts the series of several nodes together.

    Those of one name have to stand in a row.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, None]] = {}

    def add(self, text: str) -> None:
        """Take what a node exports; lines that describe a family are kept once."""
        name = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                name = line.split(" ", 3)[2]
            elif not line or line.startswith("#"):
                continue
            if name.startswith(_OWN_SERIES):
                self._lines.setdefault(name, {})[line] = None

    def text(self) -> str:
        """Return all of it."""
        return "".join(f"{line}\n" for family in self._lines.values() for line in family)


def _json(url: str) -> Any:
    return json.loads(_get(url))


def _get(url: str, method: str = "GET") -> bytes:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read(_MOST_BYTES)
    return body


def _said(error: Exception) -> str:
    reason = str(getattr(error, "reason", error)) or type(error).__name__
    return " ".join(reason.split())
