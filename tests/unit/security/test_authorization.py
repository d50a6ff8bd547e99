"""A role's rights against a model that counts them out, over tables of roles, rights and grants."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.security.authorization import (
    ACTIONS,
    Grants,
    Resource,
    Right,
    checked_actions,
    why_not,
)

ROLES = ("ann", "bob", "eve")
SUBSCRIPTIONS = ("s1", "s2")
TOPIC = "persistent://acme/ns/t"
SYSTEM = "persistent://acme/ns/__change_events"
roles = st.sampled_from(ROLES)
actions = st.dictionaries(roles, st.frozensets(st.sampled_from(ACTIONS)))
grants = st.builds(
    Grants,
    st.frozensets(roles),
    actions,
    actions,
    st.dictionaries(st.sampled_from(SUBSCRIPTIONS), st.frozensets(roles)),
)
resources = st.builds(
    Resource, st.sampled_from((TOPIC, SYSTEM, "acme/ns", "acme")), st.sampled_from(("", *SUBSCRIPTIONS))
)


def rights_of(role: str, resource: Resource, given: Grants, superusers: frozenset[str]) -> set[Right]:
    """All rights that somebody has, in the words of docs/security.md."""
    everything = set(Right)
    if role in superusers:
        return everything
    if role in given.admin_roles:
        return everything - {Right.SUPERUSER}
    rights = {Right.KNOWN}
    if resource.name == SYSTEM:
        return rights
    may = {action for each in (given.namespace, given.topic) for action in each.get(role, ())}
    if "produce" in may:
        rights |= {Right.PRODUCE, Right.LOOK}
    if "consume" in may:
        rights.add(Right.LOOK)
        closed = {name for name, only in given.subscriptions.items() if only and role not in only}
        if resource.subscription not in closed:
            rights.add(Right.CONSUME)
        if not closed:
            rights.add(Right.CONSUME_ALL)
    return rights


@given(roles, st.sampled_from(Right), resources, grants, st.frozensets(roles))
def test_a_role_may_what_the_model_says(
    role: str, right: Right, resource: Resource, given: Grants, superusers: frozenset[str]
) -> None:
    reason = why_not(role, right, resource, given, superusers)
    assert (not reason) == (right in rights_of(role, resource, given, superusers))
    if reason:
        assert role in reason or resource.name in reason


@given(roles, st.sampled_from(Right), resources, grants, st.frozensets(roles), st.sampled_from(ACTIONS))
def test_an_action_more_never_takes_a_right(
    role: str,
    right: Right,
    resource: Resource,
    given: Grants,
    superusers: frozenset[str],
    action: str,
) -> None:
    before = why_not(role, right, resource, given, superusers)
    more = {**given.topic, role: given.topic.get(role, frozenset()) | {action}}
    wider = Grants(given.admin_roles, given.namespace, more, given.subscriptions)
    if not before:
        assert not why_not(role, right, resource, wider, superusers)


@given(roles, st.sampled_from(Right), resources, grants)
def test_a_name_that_nobody_was_granted_has_no_rights(
    role: str, right: Right, resource: Resource, given: Grants
) -> None:
    assert bool(why_not("stranger", right, resource, given, {role})) == (right is not Right.KNOWN)


def test_actions_are_pulsars() -> None:
    assert checked_actions(["consume", "produce", "consume"]) == ["produce", "consume"]
    for wrong in ([], ["Produce"], ["produce", "eat"]):
        with pytest.raises(InvalidConfiguration, match="some of produce, consume"):
            checked_actions(wrong)
