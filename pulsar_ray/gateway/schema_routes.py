"""Schemas of topics: `/admin/v2/schemas/...`."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from pulsar_ray.errors import IncompatibleSchema, InvalidConfiguration
from pulsar_ray.gateway.calls import Calls
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import Mapped, Refusal, body_of, flag_of, found, nothing_like, number_of
from pulsar_ray.model.topic_schema import SchemaVersion, TopicSchema
from pulsar_ray.security.authorization import Right

_TOPIC = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
NO_SCHEMA_AT_ALL = "Invalid schema definition"
"""The registry's words of a text that is no schema begin so."""
_NOT_VALID = (Mapped(InvalidConfiguration, 422), Mapped(ValueError, 422))


class SchemaRoutes:
    """Routes of schemas, each a call of `Admin.schemas`."""

    def __init__(self, calls: Calls) -> None:
        self._call = calls
        self._schemas = calls.admin.schemas

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("GET", f"{_TOPIC}/schema", Right.LOOK, self.latest)
        routes.add("GET", f"{_TOPIC}/schema/{{version}}", Right.LOOK, self.version)
        routes.add("GET", f"{_TOPIC}/schemas", Right.LOOK, self.all)
        routes.add("POST", f"{_TOPIC}/schema", Right.PRODUCE, self.upload)
        routes.add("DELETE", f"{_TOPIC}/schema", Right.TENANT_ADMIN, self.delete)
        routes.add("POST", f"{_TOPIC}/compatibility", Right.LOOK, self.test)
        routes.add("POST", f"{_TOPIC}/version", Right.LOOK, self.number)
        routes.add("*", f"{_TOPIC}/metadata", Right.KNOWN, nothing_like("metadata of schemas"))

    async def latest(self, request: web.Request) -> web.Response:
        """Return the latest version."""
        return found(_described(await self._call(self._schemas.get, _name(request))))

    async def version(self, request: web.Request) -> web.Response:
        """Return a version by its number."""
        number = number_of("version", request.match_info["version"], -1)
        if number < 0:
            raise Refusal(404, "Schema not found")
        return found(_described(await self._call(self._schemas.get, _name(request), number)))

    async def all(self, request: web.Request) -> web.Response:
        """Return all versions, from the oldest on."""
        versions = await self._call(self._schemas.versions, _name(request))
        return found({"getSchemaResponses": [_described(version) for version in versions]})

    async def upload(self, request: web.Request) -> web.Response:
        """Register a schema; return its version."""
        schema = _given(await body_of(request, dict))
        try:
            number = await self._call(self._schemas.upload, _name(request), schema, mapped=_NOT_VALID)
        except IncompatibleSchema as error:
            is_none = error.text.startswith(NO_SCHEMA_AT_ALL)
            raise Refusal(422 if is_none else 409, error.text) from error
        return found({"version": {"version": number}})

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a topic's schema; return the number that the deletion takes."""
        number = await self._call(self._schemas.delete, _name(request), flag_of(request, "force"))
        return found({"version": -1 if number is None else number})

    async def test(self, request: web.Request) -> web.Response:
        """Say whether a schema would be taken, and why not."""
        schema = _given(await body_of(request, dict))
        result = await self._call(self._schemas.test, _name(request), schema, mapped=_NOT_VALID)
        body = {"schemaCompatibilityStrategy": result.strategy, "compatibility": result.is_compatible}
        return web.json_response({**body, "reason": result.reason} if result.reason else body, status=202)

    async def number(self, request: web.Request) -> web.Response:
        """Return the version of a schema, -1 if it is not registered."""
        schema = _given(await body_of(request, dict))
        result = await self._call(self._schemas.test, _name(request), schema, mapped=_NOT_VALID)
        return found({"version": -1 if result.version is None else result.version})


def _name(request: web.Request) -> str:
    of = request.match_info
    return f"persistent://{of['tenant']}/{of['namespace']}/{of['topic']}"


def _given(body: dict[str, Any]) -> TopicSchema:
    kind, text, properties = body.get("type"), body.get("schema", ""), body.get("properties") or {}
    if not isinstance(kind, str) or not isinstance(text, str) or not isinstance(properties, dict):
        raise Refusal(422, "send type and schema as texts, and properties as an object of texts")
    return TopicSchema(kind, text, {str(name): str(value) for name, value in properties.items()})


def _described(version: SchemaVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "type": version.schema.type,
        "timestamp": version.registered_ms,
        "data": version.schema.text,
        "properties": dict(version.schema.properties),
    }
