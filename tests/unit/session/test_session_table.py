from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pulsar_ray.errors import PulsarException, SessionLost, TooManyConnections
from pulsar_ray.session.session_table import Session, SessionTable

GRACE_MS = 5_000
LEASE_MS = 60_000


class StubCarrier:
    """A carrier that remembers how it was closed."""

    kind = "stub"
    unsent_bytes = 0
    is_peer_stopped = False

    def __init__(self) -> None:
        self.closed_with: PulsarException | None = None

    def send(self, buffers: Sequence[Any]) -> None:
        raise NotImplementedError

    def retain(self, count: int) -> None:
        raise NotImplementedError

    async def drained(self) -> None: ...

    def hold_reading(self, *, held: bool) -> None:
        raise NotImplementedError

    def release(self, count: int) -> None:
        raise NotImplementedError

    def close(self, error: PulsarException | None = None) -> None:
        self.closed_with = error


class Ended:
    """Sessions that ended, with whether they crashed."""

    def __init__(self) -> None:
        self.sessions: list[tuple[Session, bool]] = []

    def __call__(self, session: Session, crashed: bool) -> None:
        self.sessions.append((session, crashed))


@pytest.fixture
def ended() -> Ended:
    return Ended()


@pytest.fixture
def table(ended: Ended) -> SessionTable:
    return SessionTable(ended, grace_ms=GRACE_MS, lease_ms=LEASE_MS)


def test_each_attach_makes_former_ones_void(table: SessionTable) -> None:
    first = table.attach("client", 0, attempt=1)
    carrier, token = StubCarrier(), first.token
    table.carry(table.admit(first.id, token, 1), carrier, 0)
    again = table.attach("client", 10, attempt=2)
    assert again is first
    assert isinstance(carrier.closed_with, SessionLost)
    with pytest.raises(SessionLost):
        table.admit(again.id, token, 1)
    with pytest.raises(SessionLost):
        table.admit(again.id, again.token, 1)
    assert table.admit(again.id, again.token, 2) is again


def test_a_late_attach_changes_nothing(table: SessionTable) -> None:
    session = table.attach("client", 0, attempt=7)
    token, attachment = session.token, session.attachment
    with pytest.raises(SessionLost):
        table.attach("client", 10, attempt=6)
    assert table.admit(session.id, token, attachment) is session


def test_a_lost_carrier_starts_the_grace_period(table: SessionTable, ended: Ended) -> None:
    session = table.attach("client", 0)
    carrier = StubCarrier()
    table.carry(session, carrier, 0)
    table.lost(session, carrier, 1000, peer_died=False)
    table.tick(1000 + GRACE_MS)
    assert not ended.sessions
    table.tick(1001 + GRACE_MS)
    assert session.is_ended
    assert ended.sessions == [(session, True)]


def test_the_loss_of_a_replaced_carrier_does_not_matter(table: SessionTable, ended: Ended) -> None:
    session = table.attach("client", 0)
    former, present = StubCarrier(), StubCarrier()
    table.carry(session, former, 0)
    table.carry(session, present, 0)
    table.lost(session, former, 1000, peer_died=True)
    table.tick(2000 + GRACE_MS)
    assert session.carrier is present
    assert not ended.sessions


def test_silence_ends_a_session_with_its_lease(table: SessionTable, ended: Ended) -> None:
    session = table.attach("client", 0)
    table.carry(session, StubCarrier(), 0)
    session.heard_ms = 30_000
    table.tick(30_000 + LEASE_MS)
    assert not ended.sessions
    table.tick(30_001 + LEASE_MS)
    assert ended.sessions == [(session, True)]


def test_who_was_heard_since_the_last_tick_counts_as_heard_now(table: SessionTable, ended: Ended) -> None:
    session = table.attach("client", 0)
    table.carry(session, StubCarrier(), 0)
    session.was_heard = True
    table.tick(LEASE_MS + 1)
    table.tick(2 * LEASE_MS + 1)
    assert not ended.sessions
    table.tick(2 * LEASE_MS + 2)
    assert ended.sessions == [(session, True)]


@pytest.mark.parametrize("how", ["peer", "owner"])
def test_a_dead_client_ends_its_session_at_once(table: SessionTable, ended: Ended, how: str) -> None:
    session = table.attach("client", 0)
    carrier = StubCarrier()
    table.carry(session, carrier, 0)
    if how == "peer":
        table.lost(session, carrier, 10, peer_died=True)
    else:
        table.client_died(session.id)
        table.client_died(session.id)
    assert ended.sessions == [(session, True)]
    assert len(table) == 0
    assert table.attach("client", 20) is not session


def test_no_more_sessions_than_there_is_room_for(ended: Ended) -> None:
    table = SessionTable(ended, grace_ms=GRACE_MS, lease_ms=LEASE_MS, most=2)
    first = table.attach("a", 0)
    table.attach("b", 0)
    with pytest.raises(TooManyConnections, match=r"2 processes are connected .*ulimit -Hn"):
        table.attach("c", 0)
    assert table.attach("a", 0) is first
    table.end(first)
    table.attach("c", 0)


def test_sessions_of_stopped_processes_end_after_five_seconds_if_somebody_waits(table: SessionTable) -> None:
    sessions = [table.attach(name, 0) for name in ("a", "b")]
    carriers = [StubCarrier() for _ in sessions]
    for session, carrier in zip(sessions, carriers, strict=True):
        table.carry(session, carrier, 0)
    assert not table.end_stopped(sessions, 0, 10_000)  # they run
    carriers[0].is_peer_stopped = True
    assert not table.end_stopped(sessions, 0, 10_000)  # one runs
    assert table.end_stopped(sessions[:1], 10_000, 10_000)
    assert table.end_stopped(sessions[:1], 10_000, 14_999)
    assert not sessions[0].is_ended
    assert table.end_stopped(sessions[:1], 10_000, 15_000)
    assert [session.is_ended for session in sessions] == [True, False]
    assert isinstance(carriers[0].closed_with, SessionLost)
    assert table.end_stopped(sessions[:1], 15_000, 15_000)  # gone already: its place is free
