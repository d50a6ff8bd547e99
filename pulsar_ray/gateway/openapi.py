"""Describes the routes of the gateway in OpenAPI's words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pulsar_ray import __version__
from pulsar_ray.gateway.doors import UI, WEB_SOCKETS, Route
from pulsar_ray.security.authorization import Right

DESCRIPTION_PATH = "/openapi.json"
_PARAMETER = re.compile(r"\{(\w+)(?::([^{}]*))?\}")
_CHOICE = re.compile(r"[\w-]+(\|[\w-]+)*")
_RIGHTS = {
    Right.KNOWN: "be somebody",
    Right.LOOK: "produce or consume",
    Right.PRODUCE: "produce",
    Right.CONSUME: "consume",
    Right.CONSUME_ALL: "consume through all subscriptions",
    Right.TENANT_ADMIN: "administer the tenant",
    Right.SUPERUSER: "administer the broker",
}
_REASON = {
    "type": "object",
    "properties": {"reason": {"type": "string"}},
    "required": ["reason"],
}
_REFUSED = {
    "description": "Refused, with the reason.",
    "content": {"application/json": {"schema": _REASON}},
}


def described(routes: Iterable[Route], url: str) -> dict[str, Any]:
    """Return the description of all routes that programs call by single requests."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        is_for_programs = route.path != "/" and not route.path.startswith((UI, WEB_SOCKETS))
        if is_for_programs and route.method != "*":
            path = _PARAMETER.sub(r"{\1}", route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "pulsar_ray",
            "version": __version__,
            "description": "Administration and publishing by the paths and bodies of Apache Pulsar's REST.",
        },
        "servers": [{"url": url}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            }
        },
        "security": [{}, {"bearer": []}, {"basic": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _name(route),
        "tags": [_tag(route.path)],
        "description": f"Needs the right to {_RIGHTS[route.right]}.",
        "parameters": [_parameter(*match.groups()) for match in _PARAMETER.finditer(route.path)],
        "responses": {"2XX": {"description": "Done, or found."}, "4XX": _REFUSED, "5XX": _REFUSED},
    }
    if route.summary:
        operation["summary"] = route.summary
    if route.method in ("PUT", "POST"):
        operation["requestBody"] = {"content": {"application/json": {"schema": {}}}}
    return operation


def _parameter(name: str, pattern: str | None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if pattern:
        schema |= {"enum": pattern.split("|")} if _CHOICE.fullmatch(pattern) else {"pattern": pattern}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _name(route: Route) -> str:
    return route.method.lower() + re.sub(r"\W+", "_", _PARAMETER.sub(r"\1", route.path)).rstrip("_")


def _tag(path: str) -> str:
    words = [word for word in path.split("/") if word]
    found = words[2] if words[0] == "admin" else words[0]
    return "topics" if found.startswith("{domain") else found
