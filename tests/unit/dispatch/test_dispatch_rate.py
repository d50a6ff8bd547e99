"""A subscription's dispatch rate, for every type of subscription."""

from __future__ import annotations

import pytest

from pulsar_ray.dispatch.inspect.why_blocked import why_blocked
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.model.enums import ConsumerType
from tests.unit.dispatch.keys_rig import KeysRig
from tests.unit.dispatch.rig import Rig


@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.Exclusive, ConsumerType.Failover])
def test_no_more_is_granted_than_the_rate_leaves(kind: ConsumerType) -> None:
    rig = Rig([1] * 20 + [50], DispatchSettings(dispatch_rate_messages=10))
    rig.now_ms = 1000
    rig.add(1, 1000, kind)
    rig.dispatcher.elect(rig.now_ms)
    assert rig.shares() == {1: 10}
    assert rig.shares() == {}
    assert rig.dispatcher.throttled_ms(rig.now_ms) == 100
    rig.now_ms = 1500
    assert rig.shares() == {1: 5}
    rig.now_ms = 9000
    assert rig.shares() == {1: 10}, "a second's worth, and no more"
    rig.now_ms = 10_000
    assert rig.shares() == {1: 10}


def test_all_consumers_of_a_subscription_share_its_rate() -> None:
    rig = Rig([1] * 100, DispatchSettings(dispatch_rate_messages=30))
    for number in (1, 2, 3):
        rig.add(number, 1000)
    assert sum(rig.shares().values()) == 30


def test_a_batch_goes_whole_and_the_debt_is_paid() -> None:
    rig = Rig([-30, -30], DispatchSettings(dispatch_rate_messages=10))
    rig.add(1, 1000)
    assert rig.shares() == {1: 30}
    assert rig.dispatcher.throttled_ms(0) == 2100
    rig.now_ms = 2000
    assert rig.shares() == {}
    rig.now_ms = 2100
    assert rig.shares() == {1: 30}


def test_bytes_are_limited_as_well() -> None:
    """Each block of the rig has 100 bytes."""
    rig = Rig([1] * 10, DispatchSettings(dispatch_rate_bytes=250))
    rig.add(1, 1000)
    assert rig.shares() == {1: 3}
    rig.now_ms = 200
    assert rig.shares() == {}
    rig.now_ms = 250
    assert rig.shares() == {1: 1}


def test_key_shared_keeps_the_rate_and_each_keys_order() -> None:
    keys = KeysRig([*"0505050505"], settings=DispatchSettings(dispatch_rate_messages=4))
    keys.add(1, credit=100)
    keys.add(2, credit=100)
    got: list[str] = []
    for now_ms in range(0, 4000, 1000):
        keys.rig.now_ms = now_ms
        granted = keys.granted()
        assert sum(map(len, granted.values())) <= 4
        got += [key for of_consumer in granted.values() for key in of_consumer]
    assert sorted(got) == sorted("0505050505")


def test_a_rate_that_changes_holds_from_then_on() -> None:
    settings = DispatchSettings()
    rig = Rig([1] * 50, settings)
    rig.add(1, 10)
    assert rig.shares() == {1: 10}
    settings.dispatch_rate_messages = 5
    rig.dispatcher.settings_changed()
    rig.report(1, 1000)
    assert rig.shares() == {1: 5}
    assert "subscription_dispatch_rate" in why_blocked(rig.dispatcher, rig.now_ms)["reason"]
    rig.dispatcher.settings_changed()
    assert rig.shares() == {}, "the rate is as before"
    settings.dispatch_rate_messages = 0
    rig.dispatcher.settings_changed()
    assert rig.shares() == {1: 35}
    assert rig.dispatcher.rated is None
