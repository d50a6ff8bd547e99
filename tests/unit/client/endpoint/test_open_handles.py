"""A client closes what it has opened; handles that close themselves meanwhile are no error."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from weakref import ref

import pytest

from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.endpoint.open_handles import OpenHandles
from pulsar_ray.errors import ForkedClient, PulsarException, Timeout, WrongNode
from pulsar_ray.testing.waiting import wait_until

DEADLINE_S = 20


class Handle:
    """Closes by leaving its client's handles."""

    def __init__(self, handles: OpenHandles, error: PulsarException | None = None) -> None:
        self._handles = handles
        self._error = error
        self.closed = 0
        self.ending = Ending("handle")
        self.began, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        handles.add(self)

    def close(self) -> None:
        self.ending.close(self._close)

    def _close(self) -> None:
        self.began.set()
        assert self.may_end.wait(DEADLINE_S)
        self.closed += 1
        self._handles.remove(self)
        if self._error is not None:
            raise self._error

    def shut_down(self) -> None:
        self.ending.leave()


def test_all_are_closed_whatever_happens_to_one_and_the_first_error_is_returned() -> None:
    handles = OpenHandles(Ending("client"))
    first = Timeout("first")
    opened = [Handle(handles, first), Handle(handles, Timeout("second")), Handle(handles)]
    assert handles.close_all(0.0) is first
    assert [handle.closed for handle in opened] == [1, 1, 1]
    assert handles.close_all(0.0) is None


def test_a_partition_that_is_away_keeps_no_client_from_closing() -> None:
    handles = OpenHandles(Ending("client"))
    opened = [Handle(handles, WrongNode("away")), Handle(handles)]
    assert handles.close_all(0.0) is None
    assert [handle.closed for handle in opened] == [1, 1]


def test_a_close_under_way_in_another_thread_is_waited_for_and_not_repeated() -> None:
    handles = OpenHandles(Ending("client"))
    handle = Handle(handles)
    handle.may_end.clear()
    closing = threading.Thread(target=handle.close)
    closing.start()
    assert handle.began.wait(DEADLINE_S)
    ending = threading.Timer(0.05, handle.may_end.set)
    ending.start()
    assert handles.close_all(DEADLINE_S) is None
    assert handle.closed == 1
    closing.join(DEADLINE_S)


def test_a_shutdown_ends_all_at_once_and_what_it_forgets_is_not_closed() -> None:
    handles = OpenHandles(Ending("client"))
    handle = Handle(handles)
    handles.shut_down_all()
    assert handle.ending.is_over
    handles.clear()
    assert handles.close_all(0.0) is None
    assert handle.closed == 0


def test_a_forked_child_is_not_held_up_by_a_lock_of_the_parent() -> None:
    handles = OpenHandles(Ending("client"))
    handle = Handle(handles)
    handles._lock.acquire()
    handles.forked()
    handles.remove(handle)
    assert handles.close_all(0.0) is None


def test_a_handle_opened_while_its_client_was_closed_is_shut_down() -> None:
    owner = Ending("client")
    handles = OpenHandles(owner)
    owner.leave()
    handle = Handle(handles)
    assert handle.ending.is_over
    assert len(handles) == 0


class Forgetful(Handle):
    """Has a finalizer, as the real ones."""

    def __del__(self) -> None:
        self.ending.forgotten(self)


@pytest.fixture
def warned() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def test_a_forgotten_handle_is_closed_and_the_program_is_warned(
    warned: list[warnings.WarningMessage],
) -> None:
    handles, closed = OpenHandles(Ending("client")), threading.Event()
    handle = Forgetful(handles)
    handle.ending.name = "t"
    handle.may_end = closed
    del handle
    (warning,) = warned
    assert str(warning.message) == ('unclosed handle of t: it is closed now; call close(), or use "with"')
    assert warning.category is ResourceWarning
    assert len(handles) == 1, "a client that closes has to wait for it"
    warned.clear()
    del warning
    closed.set()
    wait_until(lambda: len(handles) == 0, what="it is closed")


def test_a_warning_that_is_an_error_does_not_keep_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = OpenHandles(Ending("client"))
    raised: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: raised.append(found.exc_value))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Forgetful(handles)
    assert [type(error) for error in raised] == [ResourceWarning]
    wait_until(lambda: len(handles) == 0, what="it is closed")


@pytest.mark.parametrize("how", ["closed", "left", "forked", "stays"])
def test_nothing_is_done_about_one_that_is_over_or_another_process_has_or_stays(
    how: str, warned: list[warnings.WarningMessage]
) -> None:
    handles = OpenHandles(Ending("client"))
    handle = Forgetful(handles)
    known = ref(handle)
    if how == "closed":
        handle.close()
    elif how == "left":
        handle.shut_down()
    elif how == "forked":
        handle.ending.forked(ForkedClient())
    else:
        handles.remove(handle)
        handle.ending = Ending("handle")
        handles.add(handle, stays=True)
    del handle
    assert warned == []
    assert (known() is not None) == (how == "stays")


def test_one_without_a_duty_to_be_closed_is_closed_in_silence(warned: list[warnings.WarningMessage]) -> None:
    handles = OpenHandles(Ending("client"))
    handle = Forgetful(handles)
    handle.ending.warns = False
    del handle
    assert warned == []
    wait_until(lambda: len(handles) == 0, what="it is closed")


def test_where_nobody_would_answer_it_is_ended_and_not_closed(warned: list[warnings.WarningMessage]) -> None:
    handles = OpenHandles(Ending("client"), lambda: False)
    handle = Forgetful(handles)
    ending = handle.ending
    handle.may_end.clear()
    del handle
    wait_until(lambda: ending.is_over and len(handles) == 0, what="it has ended")
    assert len(warned) == 1
