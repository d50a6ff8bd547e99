"""The parameters of the asyncio client's calls, where they differ from the synchronous client."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pulsar_ray.client.options.checks import check_flag, refuse
from pulsar_ray.client.options.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.options.declared import Count, Flag
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.options.schema import BytesSchema

# The official asyncio client's default of every `schema` is None, for BytesSchema.


@dataclass(frozen=True)
class ProducerArguments(ProducerOptions):
    """The arguments of `create_producer`: batching is on by default."""

    schema: Any = None
    batching_enabled: Flag = True

    def for_sync_client(self) -> ProducerOptions:
        """Check them, and return them as the synchronous client's."""
        return ProducerOptions.from_arguments(**_with_schema(vars(self)))


@dataclass(frozen=True)
class SubscribeArguments(ConsumerOptions):
    """The arguments of `subscribe`: no listener, and a flag that makes the topic a pattern."""

    topic: str | list[str]
    schema: Any = None
    message_listener: Callable[..., Any] | None = field(default=None, init=False)
    pattern_auto_discovery_period: Count = field(default=60, kw_only=True)
    is_pattern_topic: Flag = False

    def for_sync_client(self) -> ConsumerOptions:
        """Check them, and return them as the synchronous client's."""
        arguments = _with_schema(vars(self))
        arguments["topic"] = _topic(self.topic, arguments.pop("is_pattern_topic"))
        check_flag("start_paused", self.start_paused)
        # The synchronous client pauses its listener, of which there is none here.
        options = ConsumerOptions.from_arguments(**{**arguments, "start_paused": False})
        return replace(options, start_paused=self.start_paused)


@dataclass(frozen=True)
class ReaderArguments(ReaderOptions):
    """The arguments of `create_reader`: no listener."""

    schema: Any = None
    reader_listener: Callable[..., Any] | None = field(default=None, init=False)

    def for_sync_client(self) -> dict[str, Any]:
        """Return them as the synchronous client's, which checks them."""
        return _with_schema(vars(self))


def _with_schema(arguments: dict[str, Any]) -> dict[str, Any]:
    return {**arguments, "schema": BytesSchema() if arguments["schema"] is None else arguments["schema"]}


def _topic(topic: str | list[str], is_pattern: bool) -> str | list[str] | re.Pattern[str]:
    check_flag("is_pattern_topic", is_pattern)
    if not isinstance(topic, str if is_pattern else (str, list)):
        raise refuse(
            "topic", topic, "a str or list of str; with is_pattern_topic=True one regular expression"
        )
    if not is_pattern:
        return topic
    assert isinstance(topic, str)
    try:
        return re.compile(topic)
    except re.error as error:
        raise ValueError(f"topic={topic!r} is no regular expression: {error}") from None
