"""`Admin.namespaces.permissions` and `Admin.topics.permissions`: roles that may produce or consume."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from pulsar_ray.admin.policies import checked_subject
from pulsar_ray.admin.topic_calls import Broker
from pulsar_ray.client.options.checks import check_text, checked_names


class Permissions:
    """The permissions of one level: those of namespaces, or those of topics.

    A namespace's hold for all its topics. HTTP heeds them where `authorization_enabled` is set; who is on Ray
    needs none. A change is durable when the call returns, is heeded within two seconds, and may be repeated.
    All methods raise TopicNotFound for a namespace or topic that does not exist.
    """

    def __init__(self, broker: Broker, level: str) -> None:
        self._broker = broker
        self._level = level

    def list(self, subject: str) -> dict[str, builtins.list[str]]:
        """Return the actions of each role that has some at this level."""
        found: dict[str, builtins.list[str]] = self._ask("permissions", subject)["roles"]
        return found

    def grant(self, subject: str, role: str, actions: Sequence[str]) -> None:
        """Give a role actions besides those that it has: produce, consume and Pulsar's others.

        Raises InvalidConfiguration for an action that there is not.
        """
        check_text("role", role)
        self._ask("grant_permission", subject, role, checked_names("actions", actions))

    def revoke(self, subject: str, role: str) -> None:
        """Take all actions of this level from a role; nothing happens if it has none."""
        check_text("role", role)
        self._ask("revoke_permission", subject, role)

    def subscriptions(self, namespace: str) -> dict[str, builtins.list[str]]:
        """Return the roles of each subscription that not everybody may consume."""
        found: dict[str, builtins.list[str]] = self._ask("permissions", namespace)["subscriptions"]
        return found

    def grant_subscription(self, namespace: str, subscription: str, roles: Sequence[str]) -> None:
        """Let these roles consume a subscription, and no others but those that were named before.

        They need the permission to consume besides.
        """
        check_text("subscription", subscription)
        self._ask("grant_subscription_permission", namespace, subscription, checked_names("roles", roles))

    def revoke_subscription(self, namespace: str, subscription: str, role: str) -> None:
        """Take a role from those of a subscription.

        Without any it is open to all again.
        """
        check_text("subscription", subscription)
        check_text("role", role)
        self._ask("revoke_subscription_permission", namespace, subscription, role)

    def deciding(self, subject: str) -> dict[str, Any]:
        """Return all that decides who may use a topic, a namespace or a tenant.

        Of what is missing nothing is granted.
        """
        found: dict[str, Any] = self._broker.ask("call_part", "administration", "grants", subject)
        return found

    def _ask(self, method: str, subject: str, *arguments: Any) -> Any:
        subject = checked_subject(self._level, subject)
        return self._broker.ask("call_part", "administration", method, subject, *arguments)
