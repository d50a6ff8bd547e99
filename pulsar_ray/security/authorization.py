"""Decides what a role may do, by its standing or by permissions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.topic_name import TopicName, is_system_topic

ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
"""The actions of Pulsar's permissions; only the first two open anything here."""
PRODUCE, CONSUME = ACTIONS[:2]


class Right(Enum):
    """The right that a request needs."""

    KNOWN = "known"
    """Any role has it."""
    LOOK = "look"
    """Of who may produce or consume."""
    PRODUCE = PRODUCE
    CONSUME = CONSUME
    """Through the subscription that is named, if any is."""
    CONSUME_ALL = "consume through all subscriptions"
    TENANT_ADMIN = "administer the tenant"
    SUPERUSER = "administer the broker"


@dataclass(frozen=True)
class Resource:
    """A tenant, a namespace or a topic, and perhaps a subscription there."""

    name: str = ""
    subscription: str = ""


@dataclass(frozen=True)
class Grants:
    """All that is granted about a resource: roles with their actions, and roles of subscriptions."""

    admin_roles: frozenset[str] = frozenset()
    namespace: Mapping[str, frozenset[str]] = field(default_factory=dict)
    topic: Mapping[str, frozenset[str]] = field(default_factory=dict)
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Those of which only some roles may consume."""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Grants:
        """Take what the controller says."""
        return cls(
            frozenset(described["admin_roles"]),
            {role: frozenset(actions) for role, actions in described["namespace"].items()},
            {role: frozenset(actions) for role, actions in described["topic"].items()},
            {name: frozenset(roles) for name, roles in described["subscriptions"].items()},
        )


NO_GRANTS = Grants()


def why_not(role: str, right: Right, resource: Resource, grants: Grants, superusers: Collection[str]) -> str:
    """Return the reason why a role has no such right; empty if it has.

    Permissions of a namespace hold for its topics. They open none of the broker's own topics.
    """
    if role in superusers or right is Right.KNOWN:
        return ""
    if right is Right.SUPERUSER:
        return f"{role!r} is no superuser"
    if role in grants.admin_roles:
        return ""
    if right is Right.TENANT_ADMIN:
        return f"{role!r} is no administrator of the tenant of {resource.name}"
    return _not_permitted(role, right, resource, grants) or _shut_subscription(role, right, resource, grants)


def _not_permitted(role: str, right: Right, resource: Resource, grants: Grants) -> str:
    if "://" in resource.name and is_system_topic(TopicName.parse(resource.name)):
        return f"{resource.name} is a system topic: only administrators of its tenant may use it"
    actions = grants.namespace.get(role, frozenset()) | grants.topic.get(role, frozenset())
    wanted = {Right.LOOK: {PRODUCE, CONSUME}, Right.PRODUCE: {PRODUCE}}.get(right, {CONSUME})
    if actions & wanted:
        return ""
    return f"{role!r} has no permission to {' or '.join(sorted(wanted))} on {resource.name}"


def _shut_subscription(role: str, right: Right, resource: Resource, grants: Grants) -> str:
    named = [resource.subscription] if right is Right.CONSUME and resource.subscription else []
    for name in list(grants.subscriptions) if right is Right.CONSUME_ALL else named:
        roles = grants.subscriptions.get(name, frozenset())
        if roles and role not in roles:
            return f"{role!r} is none of the roles of the subscription {name} in {resource.name}"
    return ""


def checked_actions(actions: Collection[str]) -> list[str]:
    """Return actions in Pulsar's order. Raises InvalidConfiguration for one that there is not."""
    for action in actions:
        if action not in ACTIONS:
            raise InvalidConfiguration(f"{action!r:.100} is no action: give some of {', '.join(ACTIONS)}")
    if not actions:
        raise InvalidConfiguration(f"no action is given: give some of {', '.join(ACTIONS)}")
    return [action for action in ACTIONS if action in actions]
