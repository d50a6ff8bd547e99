"""The gateway as an actor beside the broker."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from contextlib import suppress

from pulsar_ray.actors.broker_process import begin_broker_process, say_serving
from pulsar_ray.actors.ray_actors import OwnRayActor
from pulsar_ray.admin.admin import Admin
from pulsar_ray.asyncio.client import Client
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration, PulsarException
from pulsar_ray.gateway.application import Gateway
from pulsar_ray.launch.rays.ray_session import endpoints_of_metrics
from pulsar_ray.launch.start import ready_beside, start_beside, start_on_other_nodes
from pulsar_ray.monitoring.dashboard import UID
from pulsar_ray.monitoring.services import GRAFANA_VARIABLE
from pulsar_ray.transport.actor_names import GATEWAY, beside_name
from pulsar_ray.transport.this_ray import dashboard_url, node_id, was_restarted

logger = logging.getLogger(__name__)
RETRY_S = 1.0
LONGEST_RETRY_S = 30.0
LOOK_S = 5.0
"""How often the first gateway looks for nodes that came or went."""


class GatewayActor:
    """Serves HTTP where the setting `http_listen` says; begins to by itself, also after a crash.

    It keeps nothing: what is under way when it dies is repeated by those who asked, as after any lost
    connection. With `http_on_every_node` the first one makes one of each other node, `is_first` False.
    """

    def __init__(self, settings: Settings, is_first: bool = True) -> None:
        begin_broker_process("http", settings)
        self._settings = settings
        self._began_s = time.monotonic()
        self._starting = asyncio.Lock()
        self._gateway: Gateway | None = None
        self._is_over = False
        OwnRayActor().call("ready" if is_first and not was_restarted() else "come_back")
        if is_first and settings.http_on_every_node:
            OwnRayActor().call("serve_on_every_node")

    async def ready(self) -> str:
        """Serve from now on, and return the address. Raises InvalidConfiguration where it is taken."""
        async with self._starting:
            if self._gateway is None:
                self._gateway = await self._listen()
                say_serving(self._began_s, self._gateway.url)
        return self._gateway.url

    async def come_back(self) -> None:
        """Serve where it was served before, as soon as that address is free."""
        retry_s = RETRY_S
        while self._gateway is None and not self._is_over:
            try:
                await self.ready()
            except InvalidConfiguration as error:
                event(logger, "HTTP is not served here yet: %s", error.text, level=logging.WARNING)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    async def serve_on_every_node(self) -> None:
        """Have a gateway on each node that is there, until the broker stops."""
        while not self._is_over:
            try:
                begun = await asyncio.to_thread(
                    start_on_other_nodes, GatewayActor, GATEWAY, self._settings, False
                )
            except PulsarException as error:
                event(logger, "other nodes were not looked at: %s", error.text, level=logging.WARNING)
            else:
                for node in begun:
                    event(logger, "HTTP is to be served on node %s", node)
            await asyncio.sleep(LOOK_S)

    async def _listen(self) -> Gateway:
        address = self._settings.http_address()
        if address is None:
            raise InvalidConfiguration("http_listen is off: give a port, or 'host:port'")
        gateway = Gateway(Admin(), Client(), self._settings, _links(), _exporters)
        try:
            await gateway.listen(*address)
        except OSError as error:
            await gateway.close()
            raise InvalidConfiguration(
                f"http_listen is {self._settings.http_listen!r}, where nothing can listen: "
                f"{error.strerror or error}"
            ) from None
        return gateway

    async def shutdown(self) -> None:
        """Take no more requests, and answer those under way, for ten seconds at most."""
        self._is_over = True
        if self._gateway is not None:
            await self._gateway.close()

    async def probe(self) -> int:
        """Return the process id."""
        return os.getpid()


def start_gateway(settings: Settings) -> str:
    """Serve HTTP beside the broker of this Ray, and return the address on this node.

    Where it is served already, that address. Raises InvalidConfiguration where nothing can listen.
    """
    address = settings.http_address()
    if address is not None and not address[1]:
        # A process that takes its place after a crash has to listen where it did.
        settings = settings.replace(http_listen=_free(address[0]))
    url: str = start_beside(GatewayActor, GATEWAY, settings)
    return url


def _links() -> dict[str, str]:
    """Return where Ray's dashboard and Grafana answer, as far as this Ray knows."""
    grafana = os.environ.get(GRAFANA_VARIABLE, "").rstrip("/")
    links = {"Ray dashboard": dashboard_url(), "Grafana": f"{grafana}/d/{UID}"}
    return {name: url for name, url in links.items() if url.startswith(("http://", "https://"))}


def _exporters() -> list[str]:
    """Return where nodes export their metrics, those that do."""
    return [url for _, url in endpoints_of_metrics() if url]


def gateway_url() -> str:
    """Return where HTTP is served on this Ray, best on this node; "" without it."""
    with suppress(InvalidConfiguration):
        if url := ready_beside(beside_name(GATEWAY, node_id())):
            return str(url)
    return ready_beside(GATEWAY) or ""


def _free(host: str) -> str:
    """Return the host with a port that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
