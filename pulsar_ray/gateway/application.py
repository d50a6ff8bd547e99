"""The application: all routes over one Admin and one Client."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from pulsar_ray.admin.admin import Admin
from pulsar_ray.asyncio.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.gateway.calls import Calls
from pulsar_ray.gateway.connections import KEEP_ALIVE_S, Connections, JsonRefusals
from pulsar_ray.gateway.doors import Doors, GuardedRoutes
from pulsar_ray.gateway.metric_routes import MetricRoutes
from pulsar_ray.gateway.openapi import DESCRIPTION_PATH, described
from pulsar_ray.gateway.page.page_routes import PageRoutes
from pulsar_ray.gateway.permission_routes import PermissionRoutes
from pulsar_ray.gateway.policy_routes import PolicyRoutes
from pulsar_ray.gateway.produce import ProduceRoutes, SharedProducers
from pulsar_ray.gateway.ray_routes import RayRoutes
from pulsar_ray.gateway.replies import own_pages_only, typed_errors
from pulsar_ray.gateway.schema_routes import SchemaRoutes
from pulsar_ray.gateway.stored_messages import StoredMessageRoutes
from pulsar_ray.gateway.tenancy import BrokerRoutes, NamespaceRoutes, TenantRoutes
from pulsar_ray.gateway.topics import TopicRoutes
from pulsar_ray.gateway.websocket import WebSocketRoutes
from pulsar_ray.security.authorization import Right
from pulsar_ray.security.tls import ServerTls

BODY_BYTES = 6 << 20
"""A payload of 5 MiB and what else a message has."""
HEADER_BYTES = 16 << 10
DRAIN_S = 10.0


class Gateway:
    """Serves HTTP on one address. All its methods are called on one event loop.

    Raises InvalidConfiguration for keys that are not where the settings say. It holds nothing that outlives a
    request but producers that may be used again, 64 at most.
    """

    def __init__(
        self,
        admin: Admin,
        client: Client,
        settings: Settings,
        links: Mapping[str, str] | None = None,
        exporters: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._links = links or {}
        """Where else to look, by names; the page shows them."""
        self._exporters = exporters
        """Returns where nodes export their metrics."""
        self._client = client
        self._calls = Calls(admin)
        self._doors = Doors(settings, self._calls)
        self._advertised = settings.advertised_authority()
        self._advertised_url = settings.http_advertised_url
        self._tls = ServerTls(settings) if settings.tls_certificate_file_path else None
        self._sockets = WebSocketRoutes(self._calls, client, self._doors.check)
        self._connections = Connections()
        self._runner: web.AppRunner | None = None
        self._producers = SharedProducers(client)
        self._page = PageRoutes(
            self._calls, client, self._doors, self._advertised_url, self._links, self._producers.release
        )
        self._remembering: asyncio.Task[None] | None = None
        self.url = ""

    async def listen(self, host: str, port: int) -> None:
        """Accept connections; port 0 is any free one. Raises OSError where the address is taken."""
        self._runner = web.AppRunner(self._application(), handler_cancellation=True, shutdown_timeout=DRAIN_S)
        await self._runner.setup()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = {
            "max_line_size": HEADER_BYTES,
            "max_field_size": HEADER_BYTES,
            "keepalive_timeout": KEEP_ALIVE_S,
            # Its lines have whole addresses, and with them the tokens of WebSockets.
            "access_log": None,
            # A small body could become one of any size, before anybody was asked who they are.
            "auto_decompress": False,
        }
        protocol = functools.partial(JsonRefusals, loop=loop, **options)
        context = None if self._tls is None else self._tls.context
        self._connections.open(self._runner.server, protocol)
        address, bound = await self._connections.listen(host, port, context)
        self._remembering = loop.create_task(self._page.remember())
        name = f"[{address}]" if ":" in address else address
        self.url = f"{'http' if self._tls is None else 'https'}://{name}:{bound}"

    def _outer_url(self) -> str:
        """Return where others reach this gateway."""
        return self._advertised_url or self.url

    async def close(self) -> None:
        """Take no more requests, and end those under way, for ten seconds at most."""
        if self._remembering is not None:
            self._remembering.cancel()
        self._connections.close()
        ended = self._sockets.close()
        await asyncio.gather(ended, *([] if self._runner is None else [self._runner.cleanup()]))
        self._calls.close()
        with suppress(PulsarException, asyncio.TimeoutError):
            await self._client.close()

    def _application(self) -> web.Application:
        application = web.Application(
            middlewares=[
                self._connections.timed(),
                self._page.visitors.as_pages(),
                typed_errors,
                own_pages_only(self._advertised, self._doors.note_refusal),
                self._doors.middleware(),
                self._connections.whole_bodies(),
            ],
            client_max_size=BODY_BYTES,
        )
        routes = GuardedRoutes(application.router, self._doors.rights)
        for each in (
            SchemaRoutes(self._calls),
            PermissionRoutes(self._calls),
            PolicyRoutes(self._calls),
            TopicRoutes(self._calls, self._outer_url, self._producers.release),
            StoredMessageRoutes(self._calls, self._client),
            NamespaceRoutes(self._calls),
            TenantRoutes(self._calls),
            BrokerRoutes(self._calls, self._outer_url),
            RayRoutes(self._calls, self._doors.check),
            ProduceRoutes(self._calls, self._producers),
            MetricRoutes(self._calls, self._exporters),
            self._sockets,
            self._page,
        ):
            each.add_to(routes)

        async def describe(request: web.Request) -> web.Response:
            """Return this description."""
            return web.json_response(described(routes.added, self._outer_url()))

        routes.add("GET", DESCRIPTION_PATH, Right.KNOWN, describe)
        return application
