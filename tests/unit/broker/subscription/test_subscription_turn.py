"""What follows on what happens to a subscription."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConnectedConsumers
from pulsar_ray.broker.subscription.cursor_flusher import MemoryOnly
from pulsar_ray.broker.subscription.subscription_turn import SubscriptionTurn
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.dispatch.keys_rig import KeysRig


class Feeding:
    """Reads nothing; what it was to read each time."""

    def __init__(self, keys: KeysRig) -> None:
        self._keys = keys
        self.wanted: list[int] = []

    def feed(self, _resume: Callable[[], None]) -> bool:
        self.wanted.append(self._keys.dispatcher.blocks_wanted())
        return False


def test_somebody_for_whom_nothing_waits_is_read_for_at_once() -> None:
    """Only dispatching tells: his credit is no reason to read while enough waits, as it seems."""
    settings = DispatchSettings(look_ahead_messages_per_consumer=50)
    keys = KeysRig(["0", "5"] * 60, per_block=10, settings=settings)
    keys.add(1, credit=0)
    keys.add(2, credit=60)
    assert keys.granted() == {2: ["5"] * 60}, "60 wait for the other one"
    keys.rig.report(2, 61)
    feeding: Any = Feeding(keys)
    nothing: Any = SimpleNamespace(last=keys.dispatcher.intake.read_position, granted=lambda *_: None)
    turn = SubscriptionTurn(
        keys.dispatcher,
        nothing,
        feeding,
        ConnectedConsumers(1),
        MemoryOnly(),
        nothing,
        ManualClock(),
        nothing,
        on_demand=lambda: None,
    )
    turn.run()
    assert feeding.wanted == [0, 40]
