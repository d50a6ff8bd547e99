"""Dead letters that are sent back, to topics where whoever asks may publish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from pulsar_ray.errors import AuthorizationError
from pulsar_ray.gateway.calls import Calls
from pulsar_ray.gateway.replies import Refusal
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authorization import Resource, Right

Check = Callable[[Right, Resource], Awaitable[None]]


async def permitted_target(
    call: Calls, check: Check, topic: str, to: str, subscription: str | None = None
) -> str:
    """Return the topic that letters go to, "" for those that they name themselves.

    The gateway may publish everywhere, and a letter may name any topic: so only superusers have them sent
    to wherever they say. Raises AuthorizationError unless the caller may publish to the topic.
    """
    with suppress(AuthorizationError):
        await check(Right.SUPERUSER, Resource())
        return to
    if not to:
        named = await call(call.admin.topics.redrive, topic, subscription=subscription, dry_run=True)
        if len(named) != 1 or "" in named:
            raise Refusal(
                403,
                f"the letters name {len(named.keys() - {''})} topics: give the one that all go to. Only "
                "superusers send letters to wherever each says",
            )
        to = next(iter(named))
    await check(Right.PRODUCE, Resource(TopicName.parse(to).full))
    return to
