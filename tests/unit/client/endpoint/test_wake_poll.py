from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from pulsar_ray.client.endpoint import wake_poll
from pulsar_ray.client.endpoint.wake_poll import WakePoll
from pulsar_ray.errors import AlreadyClosed, NotConnected, PulsarException
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import Cluster


class Link:
    """A link that is parked until it is woken."""

    has_endpoints = True

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_parked = True

    def wake(self) -> None:
        self.is_parked = False

    def awaited_consumers(self) -> list[tuple[int, bool]]:
        return [(1, True)]


class Controller:
    """Answers a call when the test says so, and at once when a newer one comes."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.waiting = 0
        self.errors: list[PulsarException] = []
        self._changed = threading.Condition()
        self._answer: list[str] | None = None

    def await_wake(self, client_id: str, parked: dict[str, list[tuple[int, bool]]], timeout_s: float) -> Any:
        assert client_id == "me"
        assert set(map(tuple, parked.values())) <= {((1, True),)}
        with self._changed:
            self.calls.append(sorted(parked))
            if self.errors:
                raise self.errors.pop(0)
            number = len(self.calls)
            self._changed.notify_all()
            self.waiting += 1
            self._changed.wait_for(lambda: self._answer is not None or len(self.calls) > number, timeout_s)
            self.waiting -= 1
            if len(self.calls) > number:
                return []
            answer, self._answer = self._answer, None
            return answer or []

    def answer(self, *addresses: str) -> None:
        with self._changed:
            self._answer = list(addresses)
            self._changed.notify_all()


Park = Callable[..., list[Link]]


@pytest.fixture
def controller() -> Iterator[Controller]:
    controller = Controller()
    yield controller
    wait_until(lambda: not controller.waiting)


class Timer:
    """Stands for the I/O thread: a test says when the time of gathering is over."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def call_later(self, _delay_s: float, call: Callable[[], None]) -> None:
        self._due.append(call)

    def end(self) -> None:
        due, self._due = self._due, []
        for call in due:
            call()


TIMER = Timer()


@pytest.fixture
def poll(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> WakePoll:
    monkeypatch.setattr(IoThread, "get", lambda: TIMER)
    monkeypatch.setattr(wake_poll, "PAUSE_S", 0.01)
    return WakePoll(lambda: cast("Cluster", controller), "me")


def gather(poll: WakePoll, *addresses: str) -> list[Link]:
    links = [Link(address) for address in addresses]
    for link in links:
        poll.add(cast("ActorLink", link))
    return links


def add(poll: WakePoll, *addresses: str) -> list[Link]:
    links = gather(poll, *addresses)
    TIMER.end()
    return links


def test_links_that_are_parked_together_wait_in_one_call(controller: Controller, poll: WakePoll) -> None:
    a, b, c = add(poll, "a", "b", "c")
    wait_until(lambda: controller.waiting)
    assert controller.calls == [["a", "b", "c"]]
    controller.answer("a", "c")
    wait_until(lambda: len(controller.calls) == 2)
    assert (a.is_parked, b.is_parked, c.is_parked) == (False, True, False)
    controller.answer("b")
    wait_until(lambda: not b.is_parked)
    assert controller.calls == [["a", "b", "c"], ["b"]]


def test_one_link_more_takes_the_place_of_the_call_that_waits(controller: Controller, poll: WakePoll) -> None:
    links = add(poll, "a")
    wait_until(lambda: controller.waiting)
    links += add(poll, "b")
    wait_until(lambda: controller.calls == [["a"], ["a", "b"]] and controller.waiting == 1)
    controller.answer("a", "b")
    wait_until(lambda: not any(link.is_parked for link in links))


def test_a_call_that_fails_is_made_again(controller: Controller, poll: WakePoll) -> None:
    controller.errors = [NotConnected("the controller restarts"), NotConnected("the controller restarts")]
    (link,) = add(poll, "a")
    wait_until(lambda: controller.waiting)
    controller.answer("a")
    wait_until(lambda: not link.is_parked)
    assert len(controller.calls) == 3


def test_a_closed_client_waits_for_nothing(controller: Controller, poll: WakePoll) -> None:
    controller.errors = [AlreadyClosed("the client is closed")]
    add(poll, "a")
    wait_until(lambda: controller.calls)
    assert not controller.waiting


def test_links_that_were_woken_or_left_are_not_waited_for(controller: Controller, poll: WakePoll) -> None:
    used, closed, parked = gather(poll, "used", "closed", "parked")
    used.wake()
    closed.has_endpoints = False
    TIMER.end()
    wait_until(lambda: controller.waiting)
    assert controller.calls == [["parked"]]
    controller.answer("parked")
    wait_until(lambda: not parked.is_parked)


def test_the_call_ends_with_the_last_link_that_it_waits_for(controller: Controller, poll: WakePoll) -> None:
    one, other = add(poll, "one", "other")
    wait_until(lambda: controller.waiting)
    one.has_endpoints = False
    poll.add(cast("ActorLink", one))
    TIMER.end()
    wait_until(lambda: controller.calls == [["one", "other"], ["other"]] and controller.waiting == 1)
    other.has_endpoints = False
    poll.add(cast("ActorLink", other))
    TIMER.end()
    wait_until(lambda: controller.calls[2:] == [[]] and not controller.waiting)


def test_a_call_that_is_overtaken_by_the_one_that_ends_it_is_ended(
    controller: Controller, poll: WakePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    await_wake, began, may_go_on = controller.await_wake, threading.Event(), threading.Event()

    def slow(client_id: str, parked: dict[str, list[tuple[int, bool]]], timeout_s: float) -> Any:
        if parked:
            began.set()
            assert may_go_on.wait(20)
        elif not may_go_on.is_set():
            may_go_on.set()
            return []  # it has come first, and ended nothing
        return await_wake(client_id, parked, timeout_s)

    monkeypatch.setattr(controller, "await_wake", slow)
    (link,) = add(poll, "a")
    assert began.wait(20)
    link.has_endpoints = False
    poll.add(cast("ActorLink", link))
    TIMER.end()
    wait_until(lambda: controller.calls[:1] == [["a"]] and not controller.waiting)
    assert [] in controller.calls


def test_no_call_is_made_for_a_link_that_nobody_waited_for(controller: Controller, poll: WakePoll) -> None:
    (closed,) = gather(poll, "closed")
    closed.has_endpoints = False
    TIMER.end()
    (parked,) = add(poll, "parked")
    wait_until(lambda: controller.waiting)
    assert controller.calls == [["parked"]]
    controller.answer("parked")
    wait_until(lambda: not parked.is_parked)


def test_a_forked_child_waits_for_its_own_links_only(controller: Controller, poll: WakePoll) -> None:
    add(poll, "the parent's")
    wait_until(lambda: controller.waiting)
    poll.forked()
    controller.answer()
    wait_until(lambda: not controller.waiting)
    (link,) = add(poll, "its own")
    wait_until(lambda: controller.waiting)
    controller.answer("its own")
    wait_until(lambda: not link.is_parked)
    assert controller.calls == [["the parent's"], ["its own"]]


def test_all_attach_after_a_long_time_without_an_answer(
    controller: Controller, poll: WakePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_poll, "OUT_OF_TOUCH_S", 0.0)
    controller.errors = [NotConnected("the controller is away")]
    links = add(poll, "a", "b")
    wait_until(lambda: not any(link.is_parked for link in links))
    assert controller.calls == [["a", "b"], ["a", "b"]]


def test_all_attach_if_an_answer_was_read_too_late(
    controller: Controller, poll: WakePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process was stopped meanwhile."""
    monkeypatch.setattr(wake_poll, "POLL_S", 10.0)
    monkeypatch.setattr(wake_poll, "LATE_S", -10.0)
    links = add(poll, "a", "b")
    wait_until(lambda: controller.waiting)
    controller.answer()
    wait_until(lambda: not any(link.is_parked for link in links))
