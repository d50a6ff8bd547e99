"""`Admin.namespaces.policies` and `Admin.topics.policies`: what overrides the broker's settings."""

from __future__ import annotations

from typing import Any

from pulsar_ray.admin.topic_calls import Broker
from pulsar_ray.client.options.checks import check_text
from pulsar_ray.errors import InvalidConfiguration, InvalidTopicName
from pulsar_ray.model.policies import TOPIC, AppliedPolicy, checked_value, find_policy
from pulsar_ray.model.topic_name import TopicName, is_namespace

_NOT_GIVEN: Any = object()


class Policies:
    """The policies of one level: those of namespaces, or those of topics.

    A topic's policy goes before its namespace's, and that before the broker's setting, each value for itself.
    A change is durable when the call returns, reaches what runs within a second, and may be repeated. A
    topic's policies are those of all its partitions. All methods raise TopicNotFound for a namespace or topic
    that does not exist, and InvalidConfiguration for an unknown policy, with the nearest names.
    """

    def __init__(self, broker: Broker, level: str) -> None:
        self._broker = broker
        self._level = level

    def list(self, subject: str) -> dict[str, AppliedPolicy]:
        """Return every policy by its name: effective values, and the level that each comes from."""
        return {policy.name: policy for policy in self._ask("policies", subject, "")}

    def get(self, subject: str, name: str) -> AppliedPolicy:
        """Return the effective values of one policy, and the level that each comes from."""
        find_policy(name, self._level)
        applied: AppliedPolicy
        (applied,) = self._ask("policies", subject, name)
        return applied

    def set(self, subject: str, name: str, value: Any = _NOT_GIVEN, **values: Any) -> None:
        """Set a policy: its one `value`, or several by name.

        Values that are not given stay those of the level above.

        Raises InvalidConfiguration for values out of range, of another type, or that contradict other
        policies; then nothing is changed.
        """
        policy = find_policy(name, self._level)
        if value is not _NOT_GIVEN:
            if len(policy.settings) > 1:
                raise InvalidConfiguration(
                    f"the policy {name} has several values: give {', '.join(policy.settings)} by name"
                )
            if values:
                raise InvalidConfiguration(
                    f"the policy {name} is given twice: as {value!r} and {values}; give one of them"
                )
            values = dict.fromkeys(policy.settings, value)
        self._ask("set_policy", subject, name, checked_value(name, self._level, values))

    def remove(self, subject: str, name: str) -> None:
        """Remove a policy, so that the level above decides.

        Nothing happens if it is not set.
        """
        find_policy(name, self._level)
        self._ask("remove_policy", subject, name)

    def _ask(self, method: str, subject: str, *arguments: Any) -> Any:
        subject = checked_subject(self._level, subject)
        return self._broker.ask("call_part", "administration", method, subject, *arguments)


def checked_subject(level: str, subject: str) -> str:
    """Return the full name of a topic or namespace, by the level. Raises InvalidTopicName."""
    check_text(level, subject)
    if level == TOPIC:
        return TopicName.parse(subject).full
    if not is_namespace(subject):
        raise InvalidTopicName(f"{subject!r} is not a namespace: use 'tenant/namespace'")
    return subject
