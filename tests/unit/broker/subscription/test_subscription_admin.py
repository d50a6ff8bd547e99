from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pulsar_ray.broker.subscription.subscription_admin import SubscriptionAdmin
from pulsar_ray.dispatch.inspect.why_blocked import Delayed
from tests.unit.dispatch.rig import Rig

AWAY = "receipts wait for the object store"


class Served:
    """A subscription, and its partition, which says why its receipts wait."""

    def __init__(self, rig: Rig, of_partition: str = "") -> None:
        self.core = rig.dispatcher
        self._of_partition = of_partition

    def now_ms(self) -> int:
        return 0

    def delayed(self) -> Delayed:
        return Delayed()

    async def call(self, name: str) -> str:
        assert name == "why_receipts_wait"
        return self._of_partition

    async def look_around(self) -> None:
        """There is nothing to see."""


def why(rig: Rig, *, of_partition: str = "", own: str = "") -> str:
    served = cast("Any", Served(rig, of_partition))
    admin = SubscriptionAdmin(
        served,
        served,
        served,
        served,
        "",
        ask_partition=served.call,
        look_around=served.look_around,
        waiting=lambda: own,
        seek=served.call,
    )
    return str(asyncio.run(admin.why_blocked())["reason"])


@pytest.mark.parametrize("waits", [{"of_partition": AWAY}, {"own": AWAY}])
def test_the_object_store_is_named_where_nothing_else_keeps_messages_back(waits: dict[str, str]) -> None:
    rig = Rig([1] * 3)
    assert why(rig, **waits) == "no consumer is connected"
    rig.add(1, 10)
    rig.shares()
    assert why(rig).startswith("everything was delivered")
    assert why(rig, **waits) == AWAY
