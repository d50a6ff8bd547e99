"""A connection where nothing comes unasked: the I/O thread looks away behind a wait, and misses nothing."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.errors import SessionLost
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.session.packet import encode_packet
from tests.unit.lane.server_thread import ECHO, HELLO_FIELDS, Receiver, ServerThread, soon


class LateAnswer:
    """The reader role, as a thread finds it that is slow to hear that another one has it."""

    def __init__(self, role: threading.Lock, slow_ident: int | None) -> None:
        self._role = role
        self._slow_ident = slow_ident
        self.is_refused = threading.Event()
        self.may_go_on = threading.Event()

    def acquire(self, *, blocking: bool) -> bool:
        acquired = self._role.acquire(blocking)
        if not acquired and threading.get_ident() == self._slow_ident and not self.is_refused.is_set():
            self.is_refused.set()
            assert self.may_go_on.wait(10)
        return acquired

    def release(self) -> None:
        self._role.release()


class Session:
    """A connection, and what was asked on it and is not answered."""

    def __init__(self, server: ServerThread, kind: str) -> None:
        self.receiver = Receiver()
        self.connection = LaneConnection.connect(
            getattr(server, kind), HELLO_FIELDS, self.receiver, is_quiet=lambda: not self.receiver.awaited
        )

    def ask(self, number: int, *, waits: bool = False) -> Completion:
        answered = self.receiver.awaited[number] = Completion()
        self.connection.send(encode_packet(ECHO, (number,), [b"body"]), waits=waits)
        return answered

    def ask_and_wait(self, number: int) -> None:
        assert self.connection.wait(self.ask(number, waits=True), soon())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    with ServerThread(tmp_path) as server:
        yield server


@pytest.fixture(params=["unix", "tcp"])
def session(request: pytest.FixtureRequest, server: ServerThread) -> Iterator[Session]:
    session = Session(server, request.param)
    yield session
    session.connection.close()


def test_an_answer_nobody_waits_for_is_read_by_the_io_thread(session: Session) -> None:
    for number in range(0, 100, 2):
        session.ask_and_wait(number)
        assert session.ask(number + 1).wait(5)


def test_what_was_asked_before_a_wait_is_answered_behind_it(session: Session) -> None:
    for number in range(0, 100, 2):
        earlier = session.ask(number, waits=True)
        session.ask_and_wait(number + 1)
        assert earlier.wait(5)


def test_a_wait_for_what_is_set_already_leaves_nobody_unread(session: Session) -> None:
    session.ask_and_wait(1)
    done = Completion()
    done.set()
    unread = session.ask(2, waits=True)
    assert session.connection.wait(done, soon())
    assert unread.wait(5)


def test_the_end_is_noticed_behind_a_wait(server: ServerThread, session: Session) -> None:
    session.ask_and_wait(1)
    server.call(server.server.lanes[0].close)
    assert type(session.receiver.wait_lost()) is SessionLost


def test_the_end_is_noticed_when_it_comes_just_before_the_end_of_a_wait(
    server: ServerThread, session: Session
) -> None:
    connection = session.connection
    role = LateAnswer(connection._reader_role, IoThread.get().ident)
    connection._reader_role = role  # type: ignore[assignment]
    waiting = threading.get_ident()

    class LastAnswer(Completion):
        def set(self) -> None:
            if threading.get_ident() == waiting:
                server.call(server.server.lanes[0].close)
                assert role.is_refused.wait(10)
            super().set()

    number = 0
    while not role.is_refused.is_set():  # the I/O thread may be quicker to read the first answers
        number += 1
        answered = session.receiver.awaited[number] = LastAnswer()
        connection.send(encode_packet(ECHO, (number,), [b"body"]), waits=True)
        assert connection.wait(answered, soon())
    role.may_go_on.set()
    assert type(session.receiver.wait_lost()) is SessionLost


def test_threads_that_wait_and_threads_that_do_not(session: Session) -> None:
    failures: list[str] = []

    def work(worker: int) -> None:
        rng = random.Random(worker)
        for number in range(150):
            asked = worker * 1000 + number
            if rng.random() < 0.5:
                answered = session.ask(asked, waits=True)
                if not session.connection.wait(answered, soon()):
                    failures.append(f"{asked} in its own wait")
            elif not session.ask(asked).wait(10):
                failures.append(f"{asked} on the I/O thread")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class CountingRole:
    """The reader role, and how often it was asked for in vain."""

    def __init__(self, role: threading.Lock) -> None:
        self._role = role
        self.refusals = 0

    def acquire(self, *, blocking: bool) -> bool:
        acquired = self._role.acquire(blocking)
        self.refusals += not acquired
        return acquired

    def release(self) -> None:
        self._role.release()


def test_the_io_thread_does_not_keep_looking_at_what_a_slow_caller_is_to_read(
    server: ServerThread, session: Session
) -> None:
    connection = session.connection
    role = CountingRole(connection._reader_role)
    connection._reader_role = role  # type: ignore[assignment]
    assert role.acquire(blocking=False)  # as a caller does that is then not run for a while
    answered = session.ask(1)
    elsewhere = Session(server, "unix")
    for number in range(100):
        assert elsewhere.ask(number).wait(5)
    elsewhere.connection.close()
    assert role.refusals < 10
    role.release()
    assert connection.wait(answered, soon())
    assert session.ask(2).wait(5)


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("are_quiet", [True, False])
def test_the_io_thread_does_not_keep_looking_at_an_end_that_a_slow_caller_is_to_notice(
    server: ServerThread, session: Session, are_quiet: bool, leaves: bool
) -> None:
    connection = session.connection
    role = CountingRole(connection._reader_role)
    connection._reader_role = role  # type: ignore[assignment]
    if not are_quiet:
        session.ask(1)
    assert role.acquire(blocking=False)  # as a caller does that is then not run for a while
    server.call(server.server.lanes[0].close)
    elsewhere = Session(server, "unix")
    for number in range(100):
        assert elsewhere.ask(number).wait(5)
    elsewhere.connection.close()
    assert role.refusals < 10
    role.release()
    # It leaves without having read, or reads.
    awaited = Completion()
    if leaves:
        awaited.set()
    assert connection.wait(awaited, soon()) is leaves
    assert type(session.receiver.wait_lost()) is SessionLost


def test_a_caller_that_leaves_while_the_io_thread_looks_away_leaves_nobody_unread(session: Session) -> None:
    connection = session.connection
    io_ident = IoThread.get().ident

    class Leaving(CountingRole):
        """Given back just when the I/O thread has found it taken."""

        def acquire(self, *, blocking: bool) -> bool:
            acquired = super().acquire(blocking=blocking)
            if not acquired and threading.get_ident() == io_ident and self.refusals == 1:
                self.release()
            return acquired

    role = Leaving(connection._reader_role)
    connection._reader_role = role  # type: ignore[assignment]
    assert role.acquire(blocking=False)
    assert session.ask(1).wait(5)
    assert role.refusals == 1
