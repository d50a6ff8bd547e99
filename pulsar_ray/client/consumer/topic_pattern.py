"""Topics that a regular expression matches: whole names within one namespace."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import InvalidTopicName
from pulsar_ray.model.enums import RegexSubscriptionMode
from pulsar_ray.model.topic_name import TopicName

SYSTEM_PREFIX = "__"
_DOMAIN_OF = {
    RegexSubscriptionMode.PersistentOnly: "persistent",
    RegexSubscriptionMode.NonPersistentOnly: "non-persistent",
}
_FLAGS = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s"}
"""Those that change what matches; the classes of RE2 are those of re.ASCII."""
_OPEN_COUNTS = re.compile(r"(?<!\\)(?:\\\\)*(\{,[0-9]*\})")
"""Repetitions without a lower bound, which RE2 takes for the signs themselves."""


class TopicPattern:
    """A pattern as `tenant/namespace/expression`, with or without a domain, or an expression alone.

    The domain in front counts for nothing, `mode` decides. System topics, and the topics in `own` or with
    `own_suffixes` (letter topics of the same subscription), never match. Raises InvalidTopicName for what
    names no namespace exactly, and for a construct that needs more than one pass over a name.
    """

    def __init__(
        self,
        pattern: re.Pattern[str],
        mode: RegexSubscriptionMode = RegexSubscriptionMode.PersistentOnly,
        *,
        own: Collection[str] = (),
        own_suffixes: Collection[str] = (),
    ) -> None:
        self.text = pattern.pattern
        if not isinstance(self.text, str):
            raise InvalidTopicName(f"{self.text!r}: give a pattern of text, not of bytes")
        self.namespace, expression = _split(self.text)
        self._expression = _linear(expression, pattern.flags, self.text)
        self._domain = _DOMAIN_OF.get(mode)
        self._own_suffixes = tuple(own_suffixes)
        self._own = {TopicName.parse(name).full for name in own}

    @classmethod
    def of(cls, options: ConsumerOptions) -> TopicPattern:
        """Make the pattern of a consumer, which has letter topics of its own."""
        assert isinstance(options.topic, re.Pattern)
        policy = options.dead_letter_policy
        given = (policy.dead_letter_topic, policy.retry_letter_topic) if policy is not None else ()
        return cls(
            options.topic,
            options.regex_subscription_mode,
            own=[name for name in given if name],
            own_suffixes=[f"-{options.subscription_name}-{kind}" for kind in ("RETRY", "DLQ")],
        )

    def matches(self, topic: str) -> bool:
        """Whether a topic, by its full name without a partition, belongs to the subscription."""
        name = TopicName.parse(topic)
        if f"{name.tenant}/{name.namespace}" != self.namespace or self._domain not in (None, name.domain):
            return False
        is_own = name.full in self._own or name.local_name.endswith(self._own_suffixes)
        if is_own or name.local_name.startswith(SYSTEM_PREFIX):
            return False
        return self._expression.fullmatch(name.local_name) is not None


def _linear(expression: str, flags: int, text: str) -> Any:
    """Compile the expression so that a match takes one pass over the name.

    Names are made by others, and with Python's own engine one that nearly matches could hold up the client
    for ever. Raises InvalidTopicName for what needs more than that.
    """
    import re2  # noqa: PLC0415 - it takes longer to load than a client that has no pattern needs in all

    if flags & re.VERBOSE:
        raise _needs_more(text, "re.VERBOSE", "write it without blanks and comments")
    if counts := _OPEN_COUNTS.findall(expression):
        raise _needs_more(text, counts[0], f"write {{0{counts[0][1:]}")
    letters = "".join(letter for flag, letter in _FLAGS.items() if flags & flag)
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(f"(?{letters}){expression}" if letters else expression, options)
    except re2.error as error:
        (reason,) = error.args
        found = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise _needs_more(text, found, "name the topics in a list, or by what their names have") from None


def _needs_more(text: str, found: str, remedy: str) -> InvalidTopicName:
    return InvalidTopicName(
        f"{text!r}: patterns of topics have the syntax of RE2, without lookaheads and references back, and "
        f"this is none ({found}); {remedy}"
    )


def _split(text: str) -> tuple[str, str]:
    rest = text.split("://", 1)[-1]
    parts = rest.split("/", 2)
    if len(parts) == 1 and rest == text:
        return "public/default", text
    if len(parts) != 3:
        raise InvalidTopicName(
            f"{text!r}: a pattern is tenant/namespace/expression, or an expression for public/default"
        )
    tenant, namespace, expression = parts
    try:
        TopicName.parse(f"persistent://{tenant}/{namespace}/any")
    except InvalidTopicName:
        raise InvalidTopicName(
            f"{text!r}: a pattern stays within one namespace, and {tenant}/{namespace} is no plain name; "
            "subscribe to each namespace"
        ) from None
    return f"{tenant}/{namespace}", expression
