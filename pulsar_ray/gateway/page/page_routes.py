"""Pages of topics, subscriptions, nodes and dead letters, each made of calls of Admin."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from pulsar_ray.asyncio.client import Client
from pulsar_ray.broker.figures.overview import SORTS
from pulsar_ray.errors import AuthorizationError, InvalidTopicName, PulsarException, TopicNotFound
from pulsar_ray.gateway.calls import TOPIC, Calls, partitions_of, stats_of, topic_of
from pulsar_ray.gateway.doors import UI, Doors, GuardedRoutes, caller_role
from pulsar_ray.gateway.page.actions import OF_SUBSCRIPTIONS, OF_TOPICS, Actions
from pulsar_ray.gateway.page.history import TOPICS, History, pause_s
from pulsar_ray.gateway.page.messages import MessagePages
from pulsar_ray.gateway.page.rendering import Rendering
from pulsar_ray.gateway.page.visitors import Visitors
from pulsar_ray.gateway.replies import Refusal
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authorization import Resource, Right

ROWS = 100
MANY_TOPICS = 10_000
"""A look at so many takes a store a tenth of a second."""
EVERY_S, EVERY_S_OF_MANY = 2, 10
COLUMNS = (
    ("topic", "Topic"),
    ("in", "In/s"),
    ("out", "Out/s"),
    ("backlog", "Backlog"),
    ("age", "Oldest"),
    ("unacked", "Unacked"),
    ("subscriptions", "Subs"),
    ("producers", "Prod"),
    ("consumers", "Cons"),
    ("stored", "Stored"),
    ("state", "State"),
)
_LETTERS = "-dlq"


class PageRoutes:
    """Routes of the page; a part of one is what htmx asks for."""

    def __init__(
        self,
        calls: Calls,
        client: Client,
        doors: Doors,
        outer_url: str,
        links: Mapping[str, str],
        release: Callable[[str], Awaitable[None]],
    ) -> None:
        self._call = calls
        self._admin = calls.admin
        self._doors = doors
        self._rendering = Rendering(links)
        self.visitors = Visitors(doors, self._rendering, is_outside_tls=outer_url.startswith("https:"))
        self._messages = MessagePages(calls, client, self._show)
        self._actions = Actions(calls, self.visitors, self._show, doors.check, release)
        self._history = History()

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        one, subscription = f"{UI}/topics/{TOPIC}", "/subscription/{subscription}"
        for method, path, right, handler in (
            ("GET", "/", Right.KNOWN, self.topics),
            ("GET", f"{UI}/rows", Right.KNOWN, self.rows),
            ("GET", f"{UI}/letters", Right.KNOWN, self.letters),
            ("GET", f"{UI}/nodes", Right.SUPERUSER, self.nodes),
            ("GET", f"{UI}/login", Right.KNOWN, self.visitors.form),
            ("POST", f"{UI}/login", Right.KNOWN, self.visitors.enter),
            ("POST", f"{UI}/leave", Right.KNOWN, self.visitors.leave),
            ("GET", f"{UI}/static/{{name}}", Right.KNOWN, self.file),
            ("GET", one, Right.LOOK, self.topic),
            ("GET", f"{one}/figures", Right.LOOK, self.figures),
            ("GET", f"{one}/history", Right.LOOK, self.history),
            ("GET", f"{one}/live", Right.LOOK, self.live),
            ("GET", f"{one}/settings", Right.LOOK, self.settings),
            ("GET", f"{one}/messages", Right.CONSUME, self._messages.show),
            ("GET", f"{one}{subscription}/why", Right.LOOK, self.why),
            ("GET", f"{one}{subscription}/{{action}}", Right.CONSUME, self._actions.ask),
            ("POST", f"{one}{subscription}/{{action}}", Right.CONSUME, self._actions.do),
            ("GET", f"{one}/actions/{{action}}", Right.TENANT_ADMIN, self._actions.ask),
            ("POST", f"{one}/actions/{{action}}", Right.TENANT_ADMIN, self._actions.do),
        ):
            routes.add(method, path, right, handler)

    def _show(self, template: str, status: int = 200, **values: Any) -> web.Response:
        mark = self.visitors.mark
        return self._rendering.page(template, status, role=caller_role(), mark=mark, **values)

    async def file(self, request: web.Request) -> web.Response:
        """Return a style, a script or a licence."""
        return self._rendering.file(request.match_info["name"])

    # ---- lists

    async def topics(self, request: web.Request) -> web.Response:
        """Show the topics that the caller may look at."""
        return self._show("topics.html", **await self._listed(request))

    async def rows(self, request: web.Request) -> web.Response:
        """Show the table of topics alone."""
        return self._show("topic_rows.html", **await self._listed(request))

    async def _listed(self, request: web.Request) -> dict[str, Any]:
        text, sort = request.query.get("q", "")[:200], request.query.get("sort", "backlog")
        if sort not in SORTS:
            raise Refusal(400, f"sort={sort[:100]}: give one of {', '.join(SORTS)}")
        overview = await self._call(self._admin.overview, text, sort=sort, limit=ROWS)
        shown = await self._permitted(overview["topics"])
        return {
            "text": text,
            "sort": sort,
            "columns": COLUMNS,
            "rows": shown,
            "hidden": overview["topicsNotShown"],
            "forbidden": len(overview["topics"]) - len(shown),
            "overview": overview,
            "unused": await self._unused(text, shown),
            "every_s": EVERY_S if sum(overview["counts"].values()) <= MANY_TOPICS else EVERY_S_OF_MANY,
        }

    async def _unused(self, text: str, rows: Iterable[dict[str, Any]]) -> str:
        """Return the topic of this name if it exists, and has no figures yet."""
        try:
            name = TopicName.parse(text).full if text else ""
            if not name or any(row["name"] == name for row in rows):
                return ""
            await self._doors.check(Right.LOOK, Resource(name))
            await partitions_of(self._call, name)
        except (AuthorizationError, InvalidTopicName, TopicNotFound):
            return ""
        return name

    async def letters(self, request: web.Request) -> web.Response:
        """Show the topics of dead letters, those with most first."""
        overview = await self._call(self._admin.overview, _LETTERS, sort="stored", limit=ROWS)
        topics = [row for row in overview["topics"] if row["name"].lower().endswith(_LETTERS)]
        return self._show("letters.html", rows=await self._permitted(topics))

    async def _permitted(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = list(rows)

        async def may_look(row: dict[str, Any]) -> bool:
            try:
                await self._doors.check(Right.LOOK, Resource(row["name"]))
            except AuthorizationError:
                return False
            return True

        permitted = await asyncio.gather(*map(may_look, rows))
        return [row for row, is_permitted in zip(rows, permitted, strict=True) if is_permitted]

    async def nodes(self, request: web.Request) -> web.Response:
        """Show the nodes with their room, what is shipped, and what is wrong."""
        nodes, remote, health = await asyncio.gather(
            self._call(self._admin.brokers.nodes),
            self._call(self._admin.stores.remote),
            self._call(self._admin.health),
        )
        shipped = {state.store_id: state for state in remote}
        return self._show("nodes.html", nodes=nodes, shipped=shipped, health=health)

    # ---- one topic

    async def topic(self, request: web.Request) -> web.Response:
        """Show a topic, its subscriptions and what may be done with them."""
        topic = topic_of(request)
        stats, names = await stats_of(self._call, topic)
        return self._show(
            "topic.html",
            topic=topic,
            stats=stats,
            partitions=names,
            topic_actions=OF_TOPICS,
            subscription_actions=OF_SUBSCRIPTIONS,
            row=await self._figures(topic) or _row_of(stats, names),
        )

    async def live(self, request: web.Request) -> web.Response:
        """Show the figures of a topic alone."""
        topic = topic_of(request)
        return self._show("topic_live.html", topic=topic, row=await self._row(topic))

    async def figures(self, request: web.Request) -> web.Response:
        """Return the figures that are plotted."""
        row = await self._row(topic_of(request))
        return web.json_response(
            {"in": row["msgRateIn"], "out": row["msgRateOut"], "backlog": row["msgBacklog"]}
        )

    async def history(self, request: web.Request) -> web.Response:
        """Return the figures of the last minutes, as far as they were looked at."""
        return web.json_response(self._history.of(topic_of(request), time.time()))

    async def remember(self) -> None:
        """Look at the figures of the busiest topics for ever, for the plots."""
        while True:
            began = time.monotonic()
            # The broker is away, or the gateway too busy: the next look may tell more.
            with suppress(PulsarException, Refusal):
                overview = await self._call(self._admin.overview, sort="in", limit=TOPICS)
                self._history.note(time.time(), overview["topics"])
            await asyncio.sleep(pause_s(time.monotonic() - began))

    async def _row(self, topic: str) -> dict[str, Any]:
        return await self._figures(topic) or _row_of(*await stats_of(self._call, topic))

    async def _figures(self, topic: str) -> dict[str, Any] | None:
        """Return what the actors of a topic told last, if they did; wakes nobody."""
        if TopicName.parse(topic).is_partition:
            return None
        overview = await self._call(self._admin.overview, topics=[topic])
        return next(iter(overview["topics"]), None)

    async def settings(self, request: web.Request) -> web.Response:
        """Show the settings in force, and the level that each comes from."""
        topic = topic_of(request)
        policies = await self._call(self._admin.topics.policies.list, topic)
        return self._show("topic_settings.html", topic=topic, policies=policies)

    async def why(self, request: web.Request) -> web.Response:
        """Say why a subscription's messages are not delivered just now."""
        topic, subscription = topic_of(request), request.match_info["subscription"]
        answers = await self._call(self._admin.topics.why_blocked_awake, topic, subscription)
        return self._show("why.html", subscription=subscription, answers=answers)


def _row_of(stats: Mapping[str, Any], partitions: Sequence[str]) -> dict[str, Any]:
    """Return the row that an overview would have, where nobody has reported figures."""
    subscriptions = stats["subscriptions"].values()
    return {
        "msgRateIn": stats["msgRateIn"],
        "msgRateOut": stats["msgRateOut"],
        "msgBacklog": max((each["msgBacklog"] for each in subscriptions), default=0),
        "oldestBacklogMessageAgeSeconds": None,
        "unackedMessages": sum(each["unackedMessages"] for each in subscriptions),
        "storageSize": stats["storageSize"],
        "partitions": max(len(partitions), 1),
        "awake": max(len(partitions), 1),
        "state": "not reported yet",
        "schemaType": "",
        "problem": "",
    }
