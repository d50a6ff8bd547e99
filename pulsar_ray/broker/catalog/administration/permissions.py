"""The permissions of namespaces and topics, kept beside their policies (ADR 0133)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.policies import Overrides, PolicyValue
from pulsar_ray.security.authorization import checked_actions

ROLES = "permissions"
SUBSCRIPTIONS = "subscription_permissions"
_LONGEST_NAME = 1000


def roles_of(own: Overrides) -> dict[str, list[str]]:
    """Return the actions of each role."""
    return {role: str(actions).split(",") for role, actions in own.get(ROLES, {}).items()}


def subscriptions_of(own: Overrides) -> dict[str, list[str]]:
    """Return the roles of each subscription that has some."""
    return {name: json.loads(str(roles)) for name, roles in own.get(SUBSCRIPTIONS, {}).items()}


def checked(name: str, value: Mapping[str, Any]) -> PolicyValue:
    """Return what a change log has. Raises InvalidConfiguration for what cannot be granted."""
    try:
        for key, text in value.items():
            _check_name("role" if name == ROLES else "subscription", key)
            if name == ROLES:
                checked_actions(text.split(","))
                continue
            for role in json.loads(text):
                _check_name("role", role)
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidConfiguration(f"{name} cannot be read: {error}") from None
    return dict(value)


def granted(own: Overrides, role: str, actions: Collection[str]) -> Overrides:
    """Return what is kept once a role has these actions, and those that it had."""
    _check_name("role", role)
    given = {*actions, *roles_of(own).get(role, ())} if actions else actions
    return _put(own, ROLES, {**own.get(ROLES, {}), role: ",".join(checked_actions(given))})


def revoked(own: Overrides, role: str) -> Overrides:
    """Return what is kept once a role has no actions."""
    return _put(own, ROLES, {each: value for each, value in own.get(ROLES, {}).items() if each != role})


def subscription_granted(own: Overrides, subscription: str, roles: Collection[str]) -> Overrides:
    """Return what is kept once these roles alone, and those before, consume a subscription."""
    _check_name("subscription", subscription)
    for role in roles:
        _check_name("role", role)
    if not roles:
        raise InvalidConfiguration("no role is given: name some")
    all_roles = sorted({*roles, *subscriptions_of(own).get(subscription, ())})
    return _put(own, SUBSCRIPTIONS, {**own.get(SUBSCRIPTIONS, {}), subscription: json.dumps(all_roles)})


def subscription_revoked(own: Overrides, subscription: str, role: str) -> Overrides:
    """Return what is kept once a role is none of a subscription's.

    Without any it is open to all again.
    """
    left = [each for each in subscriptions_of(own).get(subscription, ()) if each != role]
    kept = {name: value for name, value in own.get(SUBSCRIPTIONS, {}).items() if name != subscription}
    return _put(own, SUBSCRIPTIONS, {**kept, subscription: json.dumps(left)} if left else kept)


def _put(own: Overrides, name: str, value: Mapping[str, Any]) -> Overrides:
    rest: dict[str, PolicyValue] = {each: kept for each, kept in own.items() if each != name}
    return {**rest, name: dict(value)} if value else rest


def _check_name(kind: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        raise InvalidConfiguration(f"{kind}={name!r:.100}: give a name of at most {_LONGEST_NAME} signs")
