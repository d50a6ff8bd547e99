"""Clients that have published more than the rate, and when they are read on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing.publish_gate import PublishThrottle
from pulsar_ray.config import Settings
from pulsar_ray.session.session_table import Session
from pulsar_ray.testing.manual_clock import ManualClock


class Timers:
    """A loop that only has timers, in the order in which they were set."""

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self._due: list[Any] = []

    def call_later(self, delay_s: float, work: Any) -> Any:
        self.delays_s.append(delay_s)
        self._due.append(work)
        return self

    def cancel(self) -> None:
        """Nobody is interested in which."""

    def fire(self) -> None:
        self._due.pop(0)()


class Pipe:
    def __init__(self) -> None:
        self.is_held = False
        self.sent = 0

    def hold_reading(self, *, held: bool) -> None:
        self.is_held = held

    def send(self, _buffers: Sequence[Any]) -> None:
        self.sent += 1


class Throttled:
    """A partition with a rate, and its sessions."""

    def __init__(self, **rates: int) -> None:
        self.clock, self.timers = ManualClock(), Timers()
        self.policies = PartitionPolicies(Settings(**rates))  # type: ignore[arg-type]
        self.throttle = PublishThrottle(
            self.policies, self.clock, cast("asyncio.AbstractEventLoop", self.timers)
        )

    def session(self, number: int = 1) -> tuple[Session, Pipe]:
        session, pipe = Session(number, f"client {number}", 0), Pipe()
        session.carry_by(cast("Any", pipe))
        return session, pipe


def test_without_a_rate_nothing_is_charged() -> None:
    assert Throttled().throttle.limit is None


def test_clients_are_read_on_together_once_the_debt_is_paid() -> None:
    partition = Throttled(max_publish_rate_per_topic_in_messages=100)
    (one, first), (other, second) = partition.session(1), partition.session(2)
    partition.throttle.charge(one, 99, 0)
    assert not first.is_held
    partition.throttle.charge(one, 51, 0)
    partition.throttle.charge(other, 10, 0)
    assert (first.is_held, second.is_held, partition.timers.delays_s) == (True, True, [0.55])
    partition.clock.advance(550)
    partition.timers.fire()
    assert (first.is_held, second.is_held) == (True, True), "the other one has added to the debt"
    assert partition.timers.delays_s[-1] == 0.1
    partition.clock.advance(100)
    partition.timers.fire()
    assert (first.is_held, second.is_held) == (False, False)


def test_who_attaches_again_waits_with_the_others() -> None:
    partition = Throttled(max_publish_rate_per_topic_in_bytes=100)
    session, _ = partition.session()
    partition.throttle.charge(session, 1, 500)
    again = Pipe()
    session.carry_by(cast("Any", again))
    partition.throttle.opened(session)
    assert again.is_held
    newcomer, pipe = partition.session(2)
    partition.throttle.opened(newcomer)
    assert pipe.is_held


def test_clients_that_wait_count_as_heard_and_hear_something() -> None:
    partition = Throttled(max_publish_rate_per_topic_in_messages=1)
    (waits, pipe), (gone, lost) = partition.session(1), partition.session(2)
    for session in (waits, gone):
        partition.throttle.charge(session, 5, 0)
    gone.carry_by(None)
    partition.throttle.tick()
    assert (waits.was_heard, gone.was_heard) == (True, False)
    assert (pipe.sent, lost.sent) == (1, 0)


def test_another_rate_begins_with_a_second_of_its_own() -> None:
    partition = Throttled(max_publish_rate_per_topic_in_messages=1)
    session, pipe = partition.session()
    partition.throttle.charge(session, 1000, 0)
    partition.policies.take(partition.policies.settings.replace(max_publish_rate_per_topic_in_messages=2))
    partition.throttle.settings_changed()
    assert not pipe.is_held
    partition.throttle.charge(session, 2, 0)
    assert pipe.is_held


def test_a_partition_that_moves_takes_less_for_a_while_and_then_what_its_policies_say() -> None:
    partition = Throttled(max_publish_rate_per_topic_in_bytes=1_000)
    session, pipe = partition.session()
    held = []
    for limit, size in ((100, 150), (5_000, 1_500)):  # no more than the policies say
        partition.throttle.slow_down(limit, 30_000)
        partition.throttle.charge(session, 1, size - 1_000 if limit > 1_000 else size)
        held.append(pipe.is_held)
    assert held == [True, False]
    assert partition.timers.delays_s[0] == 30.0
    partition.throttle.charge(session, 1, 1_000)
    held.append(pipe.is_held)
    partition.policies.take(partition.policies.settings.replace(max_publish_rate_per_topic_in_bytes=0))
    partition.throttle.slow_down(0, 0)
    held.append(pipe.is_held)
    assert held == [True, False, True, False]
    assert partition.throttle.limit is None
