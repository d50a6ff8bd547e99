"""Metrics of the broker, as Prometheus reads them, of all nodes at one address."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiohttp import web

from pulsar_ray.gateway.calls import Calls
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import Refusal
from pulsar_ray.monitoring.services import own_metrics
from pulsar_ray.security.authorization import Right


class MetricRoutes:
    """The route of metrics, which asks the exporter of each node.

    `exporters` returns their URLs.
    """

    def __init__(self, calls: Calls, exporters: Callable[[], Sequence[str]]) -> None:
        self._call = calls
        self._exporters = exporters

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the route, also with a slash at its end, as Pulsar's has."""
        # They have the names of all topics.
        routes.add("GET", "/metrics", Right.SUPERUSER, self.all)
        routes.add("*", "/metrics/", Right.SUPERUSER, self.all)

    async def all(self, request: web.Request) -> web.Response:
        """Return the metrics of all nodes that answer."""
        text, problems = await self._call(lambda: own_metrics(self._exporters()))
        if problems and not text:
            raise Refusal(503, "; ".join(problems))
        if not text:
            raise Refusal(501, "pulsar_ray has no metrics to show: its Ray exports none")
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
