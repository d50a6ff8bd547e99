"""Renders pages from templates, in which every value is escaped."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pulsar_ray import __version__
from pulsar_ray.gateway.doors import UI
from pulsar_ray.gateway.stored_messages import as_time
from pulsar_ray.model import short_numbers
from pulsar_ray.model.topic_name import TopicName

_HERE = Path(__file__).parent
HEADERS = {
    # Scripts are files of ours: what a topic or a message says can never become one.
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def topic_path(topic: str, rest: str = "") -> str:
    """Return the address of a topic's page, or of what belongs to it."""
    name = TopicName.parse(topic)
    domain, _, path = name.full.partition("://")
    tenant, namespace, local = path.split("/", 2)
    parts = [quote(each, safe="") for each in (tenant, namespace, local)]
    return f"{UI}/topics/{domain}/{'/'.join(parts)}{rest}"


def short_name(topic: str) -> str:
    """Return a topic as people type it."""
    return topic.removeprefix("persistent://").removeprefix("public/default/")


def time_text(milliseconds: float | None) -> str:
    """Return a time since 1970 in UTC; a dash for none."""
    if not milliseconds:
        return "-"
    return as_time(int(milliseconds)).replace("T", " ").removesuffix("Z")


def _exact(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:,.0f}"


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)


class Rendering:
    """Has the templates and the static files; all are read once."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            count=short_numbers.count,
            size=short_numbers.size,
            age=short_numbers.age,
            exact=_exact,
            time=time_text,
            pretty=_pretty,
            short=short_name,
        )
        self._environment.globals.update(topic_path=topic_path, ui=UI, version=__version__, links=links)
        self._files = {path.name: path.read_bytes() for path in (_HERE / "static").iterdir()}

    def page(self, template: str, status: int = 200, **values: Any) -> web.Response:
        """Return a page, or a part of one."""
        text = self._environment.get_template(template).render(values)
        return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)

    def file(self, name: str) -> web.Response:
        """Return a static file. Raises HTTPNotFound."""
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        cached = {**HEADERS, "Cache-Control": "max-age=86400"}
        return web.Response(body=content, content_type=kind, headers=cached)
