"""Changes topics and subscriptions, behind forms that name what will be lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pulsar_ray.admin.topics import Topics
from pulsar_ray.errors import PulsarException
from pulsar_ray.gateway.calls import Calls, stats_of, topic_of
from pulsar_ray.gateway.page.messages import milliseconds
from pulsar_ray.gateway.page.rendering import topic_path
from pulsar_ray.gateway.page.visitors import Visitors, fields_of
from pulsar_ray.gateway.redriving import Check, permitted_target
from pulsar_ray.gateway.replies import Refusal, number_of, status_of, text_of
from pulsar_ray.model.policies import TOPIC, given_values

Fields = Mapping[str, str]
Stats = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A field of a form."""

    name: str
    label: str
    value: str = ""
    is_optional: bool = False


@dataclass(frozen=True)
class Action:
    """Describes one change that a form asks about.

    `lost` says by the stats what goes with it.
    """

    title: str
    lost: Callable[[Stats], str]
    do: Callable[[Topics, str, str, Fields], Any]
    """Takes the topic, the subscription or "", and the form; returns what is shown."""
    fields: tuple[Field, ...] = ()
    is_loss: bool = True


def _stored(stats: Stats) -> str:
    subscriptions = len(stats["subscriptions"])
    return f"{stats['storageSize']:,} bytes are stored, for {subscriptions} subscriptions"


def _all_gone(stats: Stats) -> str:
    return f"{_stored(stats)}. All messages and all subscriptions are lost, for ever."


def _messages_gone(stats: Stats) -> str:
    return f"{_stored(stats)}. All messages are lost, for ever; subscriptions stay."


def _nothing(_: Stats) -> str:
    return "Nothing is lost."


def _backlog(stats: Stats) -> int:
    return int(stats["msgBacklog"])


def _policies(topics: Topics, topic: str, _: str, fields: Fields) -> str:
    name, values = fields["policy"].strip(), fields.get("values", "").split()
    if values:
        topics.policies.set(topic, name, **given_values(name, TOPIC, values))
        return f"{name} is set"
    topics.policies.remove(topic, name)
    return f"{name} is removed: the namespace or the broker decides"


def _delete(topics: Topics, topic: str, _: str, fields: Fields) -> str:
    topics.delete(topic, force="force" in fields)
    return f"{topic} is deleted"


def _skip(topics: Topics, topic: str, subscription: str, fields: Fields) -> str:
    count = fields.get("count", "").strip()
    if not count:
        return f"{topics.skip_all(topic, subscription):,} entries were skipped"
    return f"{topics.skip(topic, subscription, number_of('count', count, 1)):,} entries were skipped"


def _seek(topics: Topics, topic: str, subscription: str, fields: Fields) -> str:
    to = fields["to"].strip()
    topics.reset_cursor(topic, subscription, to if to in ("earliest", "latest") else milliseconds(to))
    return f"{subscription} goes on at {to}"


def _unsubscribe(topics: Topics, topic: str, subscription: str, fields: Fields) -> str:
    topics.unsubscribe(topic, subscription, force="force" in fields)
    return f"{subscription} is deleted"


def _redrive(topics: Topics, topic: str, _: str, fields: Fields) -> str:
    to = fields.get("to", "").strip() or None
    moved = topics.redrive(topic, to)
    went = ", ".join(f"{count:,} to {target}" for target, count in moved.items() if target)
    stayed = moved.get("", 0)
    return f"{went or 'nothing went'}{f'; {stayed:,} stayed, for they name no topic' if stayed else ''}"


def _truncate(topics: Topics, topic: str, _: str, __: Fields) -> str:
    topics.truncate(topic)
    return f"{topic} is empty"


def _compact(topics: Topics, topic: str, _: str, __: Fields) -> str:
    topics.compact(topic)
    return "a compaction has begun"


def _unload(topics: Topics, topic: str, _: str, __: Fields) -> str:
    topics.unload(topic)
    return f"the processes of {topic} have ended; they start again when somebody asks"


_FORCE = Field("force", "also if producers or consumers are connected", is_optional=True)
OF_TOPICS: Mapping[str, Action] = {
    "policy": Action(
        "Set or remove a policy",
        lambda stats: "Lower limits of retention, TTL or backlog may delete messages that are kept now.",
        _policies,
        (
            Field("policy", "policy"),
            Field("values", "value, or name=value name=value; empty removes", "", True),
        ),
    ),
    "redrive": Action(
        "Send dead letters back",
        lambda stats: "Letters go to the topics that they came from, and are acknowledged here.",
        _redrive,
        (Field("to", "all to this topic instead", "", True),),
        is_loss=False,
    ),
    "compact": Action("Compact", _nothing, _compact, is_loss=False),
    "unload": Action("Restart its processes", _nothing, _unload, is_loss=False),
    "truncate": Action("Delete all messages", _messages_gone, _truncate),
    "delete": Action("Delete the topic", _all_gone, _delete, (_FORCE,)),
}
OF_SUBSCRIPTIONS: Mapping[str, Action] = {
    "skip": Action(
        "Skip messages",
        lambda stats: f"{_backlog(stats):,} entries wait. What is skipped is never delivered here.",
        _skip,
        (Field("count", "entries to skip; empty for all", "", True),),
    ),
    "seek": Action(
        "Go on elsewhere",
        lambda stats: (
            f"{_backlog(stats):,} entries wait. Forward, those between are not delivered; backward, "
            "messages that were acknowledged come again."
        ),
        _seek,
        (Field("to", "earliest, latest, or a time such as 2026-01-31T12:00:00 (UTC)", "earliest"),),
    ),
    "unsubscribe": Action(
        "Delete the subscription",
        lambda stats: f"{_backlog(stats):,} entries wait for it, which nobody else may have got.",
        _unsubscribe,
        (_FORCE,),
    ),
}


class Actions:
    """Asks before an action, and does what was confirmed."""

    def __init__(
        self,
        calls: Calls,
        visitors: Visitors,
        show: Callable[..., web.Response],
        check: Check,
        release: Callable[[str], Awaitable[None]],
    ) -> None:
        self._call = calls
        self._check = check
        self._release = release
        self._visitors = visitors
        self._show = show

    async def ask(self, request: web.Request) -> web.Response:
        """Show what will be lost, and ask whether to go on."""
        return await self._form(request, {}, "")

    async def do(self, request: web.Request) -> web.StreamResponse:
        """Do what was confirmed, and say what came of it."""
        fields = await fields_of(request)
        self._visitors.check_mark(fields.get("mark", ""))
        action, topic, subscription = self._asked(request)
        try:
            missing = next((each for each in action.fields if _is_missing(each, fields)), None)
            if missing is not None:
                raise Refusal(400, f"{missing.name} is empty: give {missing.label}")
            given = {name: value for name, value in fields.items() if value.strip()}
            if action is OF_TOPICS["redrive"]:
                to = given.get("to", "").strip()
                given["to"] = await permitted_target(self._call, self._check, topic, to)
            if action is OF_TOPICS["delete"]:
                await self._release(topic)
            outcome = await self._call(action.do, self._call.admin.topics, topic, subscription, given)
        except (PulsarException, Refusal, ValueError) as error:
            return await self._form(request, fields, text_of(error), status_of(error))
        is_gone = action is OF_TOPICS["delete"]
        return self._show(
            "done.html", title=action.title, outcome=outcome, back="/" if is_gone else topic_path(topic)
        )

    async def _form(
        self, request: web.Request, given: Fields, problem: str, status: int = 200
    ) -> web.Response:
        action, topic, subscription = self._asked(request)
        stats, _ = await stats_of(self._call, topic)
        if subscription:
            if subscription not in stats["subscriptions"]:
                raise Refusal(404, f"{topic} has no subscription {subscription}")
            stats = stats["subscriptions"][subscription]
        return self._show(
            "confirm.html",
            status,
            action=action,
            topic=topic,
            subscription=subscription,
            lost=action.lost(stats),
            given=given,
            problem=problem,
        )

    def _asked(self, request: web.Request) -> tuple[Action, str, str]:
        subscription = request.match_info.get("subscription", "")
        name = request.match_info["action"]
        action = (OF_SUBSCRIPTIONS if subscription else OF_TOPICS).get(name)
        if action is None:
            raise Refusal(404, f"there is no action {name[:100]}")
        return action, topic_of(request), subscription


def _is_missing(field: Field, given: Fields) -> bool:
    return not field.is_optional and not given.get(field.name, "").strip()
