"""Permissions of namespaces, topics and subscriptions, in Pulsar's paths and bodies."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from pulsar_ray.gateway.calls import NAMESPACE, TOPIC, Calls, namespace_of, topic_of
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import Refusal, body_of, done, found
from pulsar_ray.security.authorization import Right

_OF_NAMESPACE = f"/admin/v2/namespaces/{NAMESPACE}/permissions"
_OF_TOPIC = f"/admin/v2/{TOPIC}/permissions"


class PermissionRoutes:
    """Routes of permissions, each a call of `Admin.namespaces.permissions` or of the topics'."""

    def __init__(self, calls: Calls) -> None:
        self._call = calls
        self._namespaces = calls.admin.namespaces.permissions
        self._topics = calls.admin.topics.permissions

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        for method, path, handler in (
            ("GET", _OF_NAMESPACE, self.of_namespace),
            ("GET", f"{_OF_NAMESPACE}/subscription", self.of_subscriptions),
            ("POST", f"{_OF_NAMESPACE}/subscription/{{subscription}}", self.grant_subscription),
            ("DELETE", f"{_OF_NAMESPACE}/{{subscription}}/{{role}}", self.revoke_subscription),
            ("POST", f"{_OF_NAMESPACE}/{{role}}", self.grant_on_namespace),
            ("DELETE", f"{_OF_NAMESPACE}/{{role}}", self.revoke_on_namespace),
            ("GET", _OF_TOPIC, self.of_topic),
            ("POST", f"{_OF_TOPIC}/{{role}}", self.grant_on_topic),
            ("DELETE", f"{_OF_TOPIC}/{{role}}", self.revoke_on_topic),
        ):
            routes.add(method, path, Right.TENANT_ADMIN, handler)

    async def of_namespace(self, request: web.Request) -> web.Response:
        """Return the actions of each role on a namespace."""
        return found(await self._call(self._namespaces.list, namespace_of(request)))

    async def of_subscriptions(self, request: web.Request) -> web.Response:
        """Return the roles of each subscription that has some."""
        return found(await self._call(self._namespaces.subscriptions, namespace_of(request)))

    async def of_topic(self, request: web.Request) -> web.Response:
        """Return the actions of each role on a topic, those on its namespace included."""
        own = await self._call(self._topics.list, topic_of(request))
        merged = dict(await self._call(self._namespaces.list, namespace_of(request)))
        for role, actions in own.items():
            merged[role] = [*dict.fromkeys([*merged.get(role, ()), *actions])]
        return found(merged)

    async def grant_on_namespace(self, request: web.Request) -> web.Response:
        """Give a role actions on a namespace."""
        role, actions = request.match_info["role"], await _names(request)
        await self._call(self._namespaces.grant, namespace_of(request), role, actions)
        return done()

    async def revoke_on_namespace(self, request: web.Request) -> web.Response:
        """Take a role's actions on a namespace."""
        await self._call(self._namespaces.revoke, namespace_of(request), request.match_info["role"])
        return done()

    async def grant_on_topic(self, request: web.Request) -> web.Response:
        """Give a role actions on a topic."""
        role, actions = request.match_info["role"], await _names(request)
        await self._call(self._topics.grant, topic_of(request), role, actions)
        return done()

    async def revoke_on_topic(self, request: web.Request) -> web.Response:
        """Take a role's actions on a topic."""
        await self._call(self._topics.revoke, topic_of(request), request.match_info["role"])
        return done()

    async def grant_subscription(self, request: web.Request) -> web.Response:
        """Let these roles alone consume a subscription, with those before."""
        name, roles = request.match_info["subscription"], await _names(request)
        await self._call(self._namespaces.grant_subscription, namespace_of(request), name, roles)
        return done()

    async def revoke_subscription(self, request: web.Request) -> web.Response:
        """Take a role from those of a subscription."""
        of = request.match_info
        namespace = namespace_of(request)
        await self._call(self._namespaces.revoke_subscription, namespace, of["subscription"], of["role"])
        return done()


async def _names(request: web.Request) -> list[Any]:
    names: list[Any] = await body_of(request, list)
    if not names or not all(isinstance(name, str) for name in names):
        raise Refusal(400, f"the body is {str(names)[:100]}: send a list of texts")
    return names
