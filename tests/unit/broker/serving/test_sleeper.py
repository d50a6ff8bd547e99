"""An actor's way to sleep: when it agrees to leave, and that nothing is taken once it has."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any

import pytest

from pulsar_ray.broker.serving.sleeper import Idle, Retired, Sleeper
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.testing.manual_clock import ManualClock


class Server:
    """Notes in order what happens to it."""

    def __init__(self, log: list[str]) -> None:
        self.can_park = True
        self.uses: Hashable | None = 0
        self.refusal: Exception | None = None
        self.use_while_settling = False
        self._log = log

    def activity(self) -> Hashable | None:
        return self.uses

    async def settle(self) -> None:
        self._log.append("settle")
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        if self.use_while_settling:
            self.uses = "used"

    async def fall_asleep(self) -> Retired:
        self._log.append("fall asleep")
        return Retired(42)


class Host:
    def __init__(self, log: list[str]) -> None:
        self.clients = 0
        self._log = log

    def retire(self) -> None:
        self._log.append("refuse")

    async def let_go(self) -> None:
        self._log.append("let go")


class Actor:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.server = Server(self.log)
        self.host = Host(self.log)
        self.clock = ManualClock()
        self.reports: list[Idle] = []
        self.sleeper = self.watched(0)

    def watched(self, idle_seconds: float) -> Sleeper:
        host: Any = self.host
        loop = asyncio.get_running_loop()
        return Sleeper(self.server, host, self.clock, loop, idle_seconds, self.reports.append)

    async def retire(self, *, with_clients: bool = False) -> Retired | None:
        self.sleeper.idle()
        self.clock.advance(5000)
        return await self.sleeper.retire(5000, with_clients=with_clients)


LEAVING = ["settle", "refuse", "let go", "fall asleep"]


def test_an_idle_actor_leaves_in_order() -> None:
    async def run() -> None:
        actor = Actor()
        assert await actor.retire() == Retired(42)
        assert actor.log == LEAVING
        assert actor.sleeper.has_left
        assert await actor.retire() is None
        assert actor.log == LEAVING

    asyncio.run(run())


def test_an_actor_that_was_used_stays() -> None:
    async def run() -> None:
        actor = Actor()
        actor.sleeper.idle()
        actor.clock.advance(5000)
        actor.server.uses = 1
        assert await actor.sleeper.retire(5000, with_clients=True) is None
        assert actor.log == []

    asyncio.run(run())


def test_an_actor_in_the_middle_of_something_stays() -> None:
    async def run() -> None:
        actor = Actor()
        actor.server.uses = None
        assert await actor.retire() is None
        # Not even if nobody asks for how long.
        assert await actor.sleeper.retire(0, with_clients=True) is None
        assert "refuse" not in actor.log

    asyncio.run(run())


def test_an_actor_that_is_used_while_it_settles_serves_on() -> None:
    async def run() -> None:
        actor = Actor()
        actor.server.use_while_settling = True
        assert await actor.retire() is None
        assert actor.log == ["settle"]
        assert not actor.sleeper.has_left
        actor.server.use_while_settling = False
        assert await actor.retire() is not None

    asyncio.run(run())


def test_an_actor_whose_disk_refuses_serves_on() -> None:
    async def run() -> None:
        actor = Actor()
        actor.server.refusal = BrokerPersistenceError("full")
        assert await actor.retire() is None
        actor.server.refusal = None
        assert await actor.retire() == Retired(42)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("with_clients", "can_park", "leaves"), [(False, True, False), (True, True, True), (True, False, False)]
)
def test_attached_clients(with_clients: bool, can_park: bool, leaves: bool) -> None:
    async def run() -> None:
        actor = Actor()
        actor.host.clients = 1
        actor.server.can_park = can_park
        assert (await actor.retire(with_clients=with_clients) is not None) == leaves

    asyncio.run(run())


def test_two_ask_at_once_and_one_is_answered() -> None:
    async def run() -> None:
        actor = Actor()
        actor.sleeper.idle()
        actor.clock.advance(5000)
        both = [actor.sleeper.retire(5000, with_clients=False) for _ in range(2)]
        assert sorted(map(bool, await asyncio.gather(*both))) == [False, True]
        assert actor.log == LEAVING

    asyncio.run(run())


def test_it_reports_by_itself() -> None:
    async def run() -> None:
        actor = Actor()
        actor.host.clients = 3
        actor.watched(0.08)
        while not actor.reports:
            actor.clock.advance(20)
            await asyncio.sleep(0.005)
        assert actor.reports[0].idle_ms >= 80
        assert actor.reports[0].clients == 3

    asyncio.run(run())
