"""Joins the Ray of this machine, and describes its session; starts nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from pulsar_ray.errors import ConnectError
from pulsar_ray.launch.connect import join_ray, join_record
from pulsar_ray.launch.embedded import read_record
from pulsar_ray.transport.this_ray import session_directory

NO_RAY = (
    "no Ray runs here, and no embedded broker serves {}: start one with `ray start --head`, or "
    "`pulsar-ray standalone`"
)


@dataclass(frozen=True)
class RaySession:
    """A session of Ray, seen from one of its nodes.

    `endpoints`: host and URL of each node's metrics; "" for a node that exports none. Several nodes may have
    the same host.
    """

    directory: Path
    endpoints: list[tuple[str, str]]

    @property
    def discovery_file(self) -> Path:
        """Ray's list of all endpoints, for Prometheus; on the head node alone."""
        of_session = self.directory / "prom_metrics_service_discovery.json"
        # Of older Rays, and a link to the former of later ones.
        return of_session if of_session.exists() else self.directory.parent / of_session.name


def join_session(service_url: str, data_dir: Path, *, prefers_embedded: bool) -> RaySession:
    """Join the Ray cluster that runs here, else that of the embedded broker of `data_dir`.

    `prefers_embedded`: the other way round. Raises ConnectError if there is neither.
    """
    record = read_record(data_dir)
    if service_url == "local" or (prefers_embedded and record is not None) or not join_ray(service_url):
        if record is None:
            raise ConnectError(NO_RAY.format(data_dir))
        join_record(record)
    return RaySession(session_directory(), endpoints_of_metrics())


def endpoints_of_metrics() -> list[tuple[str, str]]:
    """Return host and URL of each node's metrics, as `RaySession` has them."""
    nodes: Any = ray.nodes
    return [
        (node["NodeManagerHostname"], _url(node["NodeManagerAddress"], node.get("MetricsExportPort") or 0))
        for node in nodes()
        if node["Alive"]
    ]


def _url(address: str, port: int) -> str:
    if port <= 0:
        return ""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/metrics"
