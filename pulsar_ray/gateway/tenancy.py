"""Tenants, namespaces, and what stands for clusters and brokers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from pulsar_ray import __version__
from pulsar_ray.errors import (
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.gateway.calls import NAMESPACE, Calls, namespace_of
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import Mapped, Refusal, body_of, done, flag_of, found, nothing_like
from pulsar_ray.security.authorization import Right

CLUSTER = "standalone"
"""There is one cluster; scripts that name Pulsar's default find it."""
_NAMESPACE = f"/admin/v2/namespaces/{NAMESPACE}"
_NOT_VALID = (Mapped(InvalidTopicName, 412), Mapped(InvalidConfiguration, 412))


class TenantRoutes:
    """Routes of tenants, each a call of `Admin.tenants`."""

    def __init__(self, calls: Calls) -> None:
        self._call = calls
        self._tenants = calls.admin.tenants

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("GET", "/admin/v2/tenants", Right.SUPERUSER, self.list)
        one = "/admin/v2/tenants/{tenant}"
        routes.add("GET", one, Right.TENANT_ADMIN, self.get)
        routes.add("PUT", one, Right.SUPERUSER, self.create)
        routes.add("POST", one, Right.SUPERUSER, self.update)
        routes.add("DELETE", one, Right.SUPERUSER, self.delete)

    async def list(self, request: web.Request) -> web.Response:
        """List the tenants."""
        return found(await self._call(self._tenants.list))

    async def get(self, request: web.Request) -> web.Response:
        """Return the roles and clusters of a tenant."""
        info = await self._call(self._tenants.get, request.match_info["tenant"])
        return found({"adminRoles": info["admin_roles"], "allowedClusters": info["allowed_clusters"]})

    async def create(self, request: web.Request) -> web.Response:
        """Create a tenant."""
        info = _given(await body_of(request, dict, {}))
        mapped = (Mapped(NotAllowedError, 409), *_NOT_VALID)
        await self._call(self._tenants.create, request.match_info["tenant"], **info, mapped=mapped)
        return done()

    async def update(self, request: web.Request) -> web.Response:
        """Replace the roles and clusters of a tenant."""
        info = _given(await body_of(request, dict))
        await self._call(self._tenants.update, request.match_info["tenant"], **info, mapped=_NOT_VALID)
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a tenant."""
        force, tenant = flag_of(request, "force"), request.match_info["tenant"]
        await self._call(self._tenants.delete, tenant, force, mapped=(Mapped(NotAllowedError, 409),))
        return done()


def _given(body: dict[str, Any]) -> dict[str, Any]:
    return {
        ours: body[theirs]
        for theirs, ours in (("adminRoles", "admin_roles"), ("allowedClusters", "allowed_clusters"))
        if body.get(theirs) is not None
    }


class NamespaceRoutes:
    """Routes of namespaces without their policies, each a call of `Admin.namespaces`."""

    def __init__(self, calls: Calls) -> None:
        self._call = calls
        self._namespaces = calls.admin.namespaces
        self._topics = calls.admin.topics

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("GET", "/admin/v2/namespaces/{tenant}", Right.TENANT_ADMIN, self.list)
        routes.add("PUT", _NAMESPACE, Right.TENANT_ADMIN, self.create)
        routes.add("DELETE", _NAMESPACE, Right.TENANT_ADMIN, self.delete)
        routes.add("GET", f"{_NAMESPACE}/bundles", Right.LOOK, self.bundles)
        routes.add("PUT", f"{_NAMESPACE}/unload", Right.TENANT_ADMIN, self.unload)
        routes.add("POST", f"{_NAMESPACE}/clearBacklog", Right.CONSUME_ALL, self.clear_backlog)
        routes.add("POST", f"{_NAMESPACE}/clearBacklog/{{subscription}}", Right.CONSUME, self.clear_backlog)
        routes.add("POST", f"{_NAMESPACE}/unsubscribe/{{subscription}}", Right.CONSUME, self.unsubscribe)
        for path, what in (
            ("properties", "properties of namespaces"),
            ("property/{key}/{value}", "properties of namespaces"),
            ("{range}/split", "bundles to split"),
        ):
            routes.add("*", f"{_NAMESPACE}/{path}", Right.KNOWN, nothing_like(what))

    async def list(self, request: web.Request) -> web.Response:
        """List the namespaces of a tenant."""
        return found(await self._call(self._namespaces.list, request.match_info["tenant"]))

    async def create(self, request: web.Request) -> web.Response:
        """Create a namespace; policies of the body are refused, but for empty ones."""
        given = await body_of(request, dict, {})
        own = sorted(name for name, value in given.items() if name in _SET_APART and value)
        if own:
            raise Refusal(501, f"set {', '.join(own)} after the namespace was created")
        mapped = (Mapped(NotAllowedError, 409), *_NOT_VALID)
        await self._call(self._namespaces.create, namespace_of(request), mapped=mapped)
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a namespace, with its topics if forced."""
        force, mapped = flag_of(request, "force"), (Mapped(NotAllowedError, 409), *_NOT_VALID)
        await self._call(self._namespaces.delete, namespace_of(request), force, mapped=mapped)
        return done()

    async def bundles(self, request: web.Request) -> web.Response:
        """Return the bundles: one, since partitions are placed one by one."""
        await self._call(self._topics.partitions, namespace_of(request))
        return found({"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1})

    async def unload(self, request: web.Request) -> web.Response:
        """Have the processes that serve a namespace's topics start anew."""
        for topic in await self._call(self._topics.list, namespace_of(request)):
            # It may have been deleted meanwhile.
            with suppress(TopicNotFound):
                await self._call(self._topics.unload, topic)
        return done()

    async def clear_backlog(self, request: web.Request) -> web.Response:
        """Acknowledge everything that is stored, for all subscriptions or for one."""
        subscription = request.match_info.get("subscription")
        await self._call(self._namespaces.clear_backlog, namespace_of(request), subscription)
        return done()

    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Delete a subscription of all topics of a namespace."""
        name = request.match_info["subscription"]
        for topic in await self._call(self._topics.list, namespace_of(request)):
            # Topic or subscription may be gone meanwhile.
            with suppress(TopicNotFound, SubscriptionNotFound):
                if name in await self._call(self._topics.subscriptions, topic):
                    mapped = (Mapped(NotAllowedError, 412),)
                    await self._call(self._topics.unsubscribe, topic, name, mapped=mapped)
        return done()


_SET_APART = ("retention_policies", "backlog_quota_map", "message_ttl_in_seconds", "deduplicationEnabled")


_NOT_OF_BROKERS = {
    "brokers/configuration{rest:(/.*)?}": "settings that change as it runs; .../runtime has those in force",
    "brokers/internal-configuration": "metadata store that clients could use",
    "brokers/backlog-quota-check": "check of quotas on demand",
    "brokers/{cluster}/{broker}/ownedNamespaces": "owners of namespaces; partitions are placed one by one",
    "broker-stats/{rest:.*}": "stats of brokers; /metrics and /admin/v2/.../stats have figures",
}


class BrokerRoutes:
    """Routes of clusters and brokers: the stores' hosts stand for brokers."""

    def __init__(self, calls: Calls, own_url: Callable[[], str]) -> None:
        self._call = calls
        self._admin = calls.admin
        self._url = own_url

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("GET", "/admin/v2/clusters", Right.KNOWN, self.clusters)
        routes.add("GET", "/admin/v2/clusters/{cluster}", Right.KNOWN, self.cluster)
        routes.add("GET", "/admin/v2/clusters/{cluster}/failureDomains", Right.KNOWN, self.domains)
        routes.add("GET", "/admin/v2/brokers/health", Right.KNOWN, self.health)
        routes.add("GET", "/admin/v2/brokers/ready", Right.KNOWN, self.ready)
        routes.add("GET", "/admin/v2/brokers/version", Right.KNOWN, self.version)
        routes.add("GET", "/admin/v2/brokers/leaderBroker", Right.SUPERUSER, self.leader)
        routes.add("GET", "/admin/v2/brokers/configuration/runtime", Right.SUPERUSER, self.settings)
        for path, what in _NOT_OF_BROKERS.items():
            routes.add("*", f"/admin/v2/{path}", Right.KNOWN, nothing_like(what))
        routes.add("GET", "/admin/v2/brokers", Right.SUPERUSER, self.list)
        routes.add("GET", "/admin/v2/brokers/{cluster}", Right.SUPERUSER, self.list)
        routes.add("GET", "/health", Right.KNOWN, self.health)
        for path, what in (
            ("v2/clusters/{cluster}", "clusters to change: it is one by itself"),
            ("v2/clusters/{cluster}/{rest:.+}", "peers, policies or migration of clusters"),
            ("v2/resource-quotas{rest:(/.*)?}", "quotas of bundles"),
            ("v2/resourcegroups{rest:(/.*)?}", "groups of resources"),
            ("v2/bookies/{rest:.*}", "bookies; `pulsar-ray nodes` lists stores"),
            ("v2/worker/{rest:.*}", "functions"),
            ("v2/functions/{rest:.*}", "functions; Ray's actors and tasks stand in for them"),
            ("v3/functions/{rest:.*}", "functions; Ray's actors and tasks stand in for them"),
            ("v3/sources/{rest:.*}", "sources; a program with a producer stands in for one"),
            ("v3/sinks/{rest:.*}", "sinks; Spark, Ray Data or a program with a consumer stands in for one"),
            ("v3/packages/{rest:.*}", "packages"),
            ("v3/transactions/{rest:.*}", "transactions"),
        ):
            routes.add("*", f"/admin/{path}", Right.KNOWN, nothing_like(what))

    async def clusters(self, request: web.Request) -> web.Response:
        """List the clusters: one."""
        return found([CLUSTER])

    async def cluster(self, request: web.Request) -> web.Response:
        """Return the addresses of the cluster."""
        self._check_cluster(request)
        return found({"serviceUrl": self._url(), "brokerServiceUrl": ""})

    async def domains(self, request: web.Request) -> web.Response:
        """Return no domains."""
        self._check_cluster(request)
        return found({})

    @staticmethod
    def _check_cluster(request: web.Request) -> None:
        if request.match_info.get("cluster", CLUSTER) != CLUSTER:
            raise Refusal(404, f"Cluster does not exist: there is {CLUSTER}")

    async def list(self, request: web.Request) -> web.Response:
        """List the hosts of the stores."""
        self._check_cluster(request)
        return found(await self._call(self._admin.brokers.list))

    async def health(self, request: web.Request) -> web.Response:
        """Publish and read a message on each store, and answer `ok` if all did."""
        checks = await self._call(self._admin.brokers.healthcheck)
        problems = [f"{check.host}: {check.problem}" for check in checks if check.problem]
        if problems:
            raise Refusal(503, "; ".join(problems))
        return web.Response(text="ok", content_type="application/json")

    async def ready(self, request: web.Request) -> web.Response:
        """Answer `ok` once the controller answers."""
        await self._call(self._admin.broker)
        return web.Response(text="ok", content_type="application/json")

    async def version(self, request: web.Request) -> web.Response:
        """Return the version of pulsar_ray."""
        return web.Response(text=__version__, content_type="text/plain")

    async def leader(self, request: web.Request) -> web.Response:
        """Return the host of the controller."""
        host = (await self._call(self._admin.broker))["catalog_host"]
        return found({"serviceUrl": self._url(), "brokerId": host})

    async def settings(self, request: web.Request) -> web.Response:
        """Return the broker's settings, each as a text."""
        settings = (await self._call(self._admin.broker))["settings"]
        return found({name: str(value) for name, value in sorted(settings.items())})
