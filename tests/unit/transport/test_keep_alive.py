"""Noticing an actor that is silent: with intervals of milliseconds on the real I/O thread."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from pulsar_ray.errors import SessionLost
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport import endpoint
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import Cluster
from pulsar_ray.transport.endpoint import KeepAlive


class Link:
    """Everything around a KeepAlive: the cluster, the carrier of now, and its connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.silent: list[str] = []
        self.lost: list[BaseException] = []
        self.unused = 0
        self.pings = 0
        self.has_unread = False
        self.refusal: OSError | None = None
        self.carrier: Link | None = self
        self.keeper = KeepAlive(
            cast("Cluster", self),
            lambda: cast("Connection", self.carrier),
            self.on_lost,
            self.on_unused,
            loop,
        )

    def begin(self) -> None:
        self.keeper.begin(cast("Connection", self), "the actor")

    def on_lost(self, connection: Connection, error: BaseException) -> None:
        assert cast("Any", connection) is self
        self.lost.append(error)
        self.carrier = None

    def on_unused(self) -> None:
        self.unused += 1

    def report_silent(self, address: str) -> None:
        self.silent.append(address)

    def keep_alive(self, _packet: bytes) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.pings += 1


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "PING_INTERVAL_S", 0.002)
    monkeypatch.setattr(endpoint, "SILENCE_S", 0.05)


def test_a_silent_actor_is_lost_and_reported() -> None:
    link = Link()
    link.begin()
    wait_until(lambda: bool(link.lost) and bool(link.silent))
    assert isinstance(link.lost[0], SessionLost)
    assert link.silent == ["the actor"]


def test_an_actor_that_answers_is_kept() -> None:
    link = Link()
    link.begin()
    # As if an answer had just come, whenever it is looked at.
    link.keeper.heard_at = time.monotonic() + 3600
    pings = link.pings
    wait_until(lambda: link.pings > pings + 30)
    assert link.lost == []
    link.carrier = None


def test_an_actor_whose_packets_nobody_has_read_yet_is_not_silent() -> None:
    link = Link()
    link.has_unread = True
    link.begin()
    pings = link.pings
    wait_until(lambda: time.monotonic() - link.keeper.heard_at > 0.1 and link.pings > pings)
    assert link.lost == []
    link.carrier = None


def test_a_connection_that_cannot_be_written_is_lost_at_once() -> None:
    link = Link()
    link.refusal = BrokenPipeError("gone")
    link.begin()
    wait_until(lambda: bool(link.lost))
    assert link.lost == [link.refusal]
    assert link.silent == []


def test_an_earlier_connection_is_left_alone() -> None:
    link, other = Link(), Link()
    link.carrier = other
    link.begin()
    other.begin()
    wait_until(lambda: bool(other.lost))
    assert link.pings == 0
    assert link.lost == []


def test_nobody_is_pinged_for_a_loop_that_is_closed() -> None:
    loop = asyncio.new_event_loop()
    link = Link(loop)
    loop.close()
    link.begin()
    wait_until(lambda: link.unused == 1)
    assert link.pings == 0
