"""A subscription that stands still is noticed once, with the reason."""

from __future__ import annotations

from pulsar_ray.dispatch.inspect.watchdog import Watchdog
from tests.unit.dispatch.key_shared.test_policy import ring_with_c1_holding_all
from tests.unit.dispatch.keys_rig import KeysRig


def test_a_standstill_is_told_once_with_its_reason() -> None:
    keys = ring_with_c1_holding_all()
    keys.granted()
    dog = Watchdog(30_000)
    assert dog.look(keys.dispatcher, 0) is None
    assert dog.look(keys.dispatcher, 29_999) is None
    told = dog.look(keys.dispatcher, 30_000)
    assert told is not None
    assert "still drains at c1" in told
    assert dog.look(keys.dispatcher, 31_000) is None
    assert dog.stuck_for_ms(31_000) == 31_000
    keys.acknowledge(1, 9)
    assert dog.look(keys.dispatcher, 32_000) is None
    assert dog.stuck_for_ms(32_000) == 0
    assert dog.look(keys.dispatcher, 62_000) is not None


def test_nothing_is_told_of_what_can_not_move_or_need_not() -> None:
    dog = Watchdog(10)
    idle = KeysRig([])
    idle.add(1)
    for now in (0, 100, 200):
        assert dog.look(idle.dispatcher, now) is None
    full = KeysRig(["0"] * 20)
    full.add(1, credit=3)
    full.granted()
    dog = Watchdog(10)
    for now in (0, 100, 200):
        assert dog.look(full.dispatcher, now) is None


def test_a_watchdog_of_zero_is_off() -> None:
    keys = ring_with_c1_holding_all()
    keys.granted()
    dog = Watchdog(0)
    for now in (0, 10**6, 10**9):
        assert dog.look(keys.dispatcher, now) is None
