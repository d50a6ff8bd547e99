"""Which settings hold for an actor, and when it may delete."""

from __future__ import annotations

import pytest

from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.policies import PolicyUpdate

BROKER = Settings(max_producers_per_topic=1)
CONTRADICTION = {"managed_ledger_min_ledger_rollover_time_minutes": 500}


def test_without_policies_the_brokers_settings_hold() -> None:
    policies = PoliciesInForce(BROKER)
    assert policies.settings is BROKER
    assert policies.are_current


def test_the_newest_update_holds_whatever_the_order() -> None:
    policies = PoliciesInForce(BROKER, PolicyUpdate(3, {"max_producers_per_topic": 3}))
    assert policies.settings.max_producers_per_topic == 3
    assert policies.take(PolicyUpdate(5, {"max_consumers_per_topic": 5}))
    assert (policies.settings.max_producers_per_topic, policies.settings.max_consumers_per_topic) == (1, 5)
    for late in (5, 4):
        assert not policies.take(PolicyUpdate(late, {"max_consumers_per_topic": 4}))
    assert policies.settings.max_consumers_per_topic == 5
    assert policies.take(PolicyUpdate(6))
    assert policies.settings == BROKER


def test_a_restarted_actor_deletes_nothing_before_the_controller_has_answered() -> None:
    for version, changed in ((7, False), (8, True)):
        policies = PoliciesInForce(BROKER, PolicyUpdate(7), is_stale=True)
        assert not policies.are_current
        policies.take(PolicyUpdate(6))
        assert not policies.are_current, "older than what it knows"
        assert policies.take(PolicyUpdate(version)) == changed
        assert policies.are_current


def test_with_policies_that_contradict_the_broker_nothing_is_deleted() -> None:
    policies = PoliciesInForce(BROKER, PolicyUpdate(1, CONTRADICTION))
    assert policies.settings is BROKER
    assert not policies.are_current


def test_policies_that_the_settings_refuse_change_nothing() -> None:
    policies = PoliciesInForce(BROKER, PolicyUpdate(2, {"max_producers_per_topic": 2}))
    with pytest.raises(InvalidConfiguration, match="at most"):
        policies.take(PolicyUpdate(3, CONTRADICTION))
    assert policies.settings.max_producers_per_topic == 2
    assert not policies.are_current
    policies.take(PolicyUpdate(3))
    assert policies.settings is BROKER, "mended, under the version that was refused"


def test_an_actor_that_was_there_before_stays_known_as_such_with_the_policies_of_now() -> None:
    in_force = PoliciesInForce(Settings(), PolicyUpdate(1), is_stale=True)
    in_force.take(PolicyUpdate(2))
    assert (in_force.are_current, in_force.is_restarted) == (True, True)
    assert not PoliciesInForce(Settings(), PolicyUpdate(1)).is_restarted
