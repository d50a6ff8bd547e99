from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest
import ray
import ray.exceptions as ray_errors

from pulsar_ray.errors import AlreadyClosed, BrokerPersistenceError, Timeout
from pulsar_ray.transport.ray_calls import ClientCalls, RayCalls, translated


def test_an_actor_whose_disk_is_full_is_a_typed_error() -> None:
    failed: Callable[..., Exception] = ray_errors.RayTaskError
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(
            BrokerPersistenceError, match=r"t -> s\.attach: .*No space left on device: see to the disk"
        ),
        translated("t -> s.attach"),
    ):
        raise failed("attach", "the actor's traceback", full)


class LateReference:
    """An answer that does not come while it is waited for."""

    def __init__(self) -> None:
        self.taken = 0

    def future(self) -> None:
        self.taken += 1


def test_an_answer_that_comes_too_late_is_taken_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray prints errors that nobody took into the terminal."""

    def too_early(*_: Any, timeout: float) -> None:
        raise ray_errors.GetTimeoutError

    monkeypatch.setattr(ray, "get", too_early)
    reference, calls = LateReference(), RayCalls()
    with pytest.raises(ray_errors.GetTimeoutError):
        calls.result(calls.made(reference), timeout_s=0.01)
    assert reference.taken == 1


def test_a_call_without_an_answer_says_why_that_may_be_and_what_to_do() -> None:
    with (
        pytest.raises(Timeout, match=r"t\.attach: .* still starting.*operation_timeout_seconds"),
        translated("t.attach"),
    ):
        raise ray_errors.GetTimeoutError


class Reference:
    """Notes when it is let go of."""

    def __init__(self, gone: list[str]) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone.append("gone")


def test_a_reference_is_let_go_of_with_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get", lambda _reference, timeout: "answer")
    gone: list[str] = []
    calls = RayCalls()
    call = calls.made(Reference(gone))
    assert calls.result(call, timeout_s=1.0) == "answer"
    assert gone == ["gone"]
    calls.let_go(calls.made(Reference(gone)))
    assert gone == ["gone", "gone"]


def test_no_reference_is_let_go_of_while_the_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would end it with exit code 1 for a thread that does that just when it shuts down."""
    gone: list[str] = []
    calls = RayCalls()
    asked, never_asked = calls.made(Reference(gone)), calls.made(Reference(gone))
    given_up = calls.made(Reference(gone))

    def ends_meanwhile(_reference: Any, timeout: float) -> str:
        calls.end()
        return "answer"

    monkeypatch.setattr(ray, "get", ends_meanwhile)
    assert calls.result(asked, timeout_s=1.0) == "answer"
    with pytest.raises(AlreadyClosed):
        calls.result(never_asked, timeout_s=1.0)
    calls.let_go(given_up)
    del asked, never_asked, given_up
    assert gone == []


def test_nobody_is_inside_ray_while_it_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would end the process for a thread that calls it just then."""
    calls, is_waiting, left = RayCalls(), threading.Event(), threading.Event()

    def no_answer(_reference: Any, timeout: float) -> None:
        is_waiting.set()
        raise ray_errors.GetTimeoutError

    def wait_for_an_answer() -> None:
        with pytest.raises(AlreadyClosed), calls:
            calls.result(calls.made(object()), timeout_s=3600)
        left.set()

    monkeypatch.setattr(ray, "get", no_answer)
    threading.Thread(target=wait_for_an_answer, daemon=True).start()
    assert is_waiting.wait(20)
    with calls.kept_out():
        assert left.wait(20)
        with pytest.raises(AlreadyClosed), calls:
            pytest.fail("somebody came in")
    with calls:
        assert calls._inside == 1


def test_no_thread_of_a_closed_client_is_inside_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its program does next may be `ray.shutdown()`; other clients go on."""
    calls, is_waiting, left = RayCalls(), threading.Event(), threading.Event()
    client, other = ClientCalls(calls), ClientCalls(calls)

    def no_answer(_reference: Any, timeout: float) -> None:
        is_waiting.set()
        raise ray_errors.GetTimeoutError

    def wait_for_an_answer() -> None:
        with pytest.raises(AlreadyClosed, match="the client is closed"), client:
            client.result(client.made(LateReference()), timeout_s=3600)
        left.set()

    monkeypatch.setattr(ray, "get", no_answer)
    threading.Thread(target=wait_for_an_answer, daemon=True).start()
    assert is_waiting.wait(20)
    client.close(wait_s=20)
    assert left.wait(20)
    with pytest.raises(AlreadyClosed, match="the client is closed"), client:
        pytest.fail("it came in")
    assert calls._inside == 0
    with other:
        assert calls._inside == 1


def test_a_thread_that_ray_does_not_let_go_is_not_waited_for_for_ever() -> None:
    client = ClientCalls(RayCalls())
    with client:
        client.close(wait_s=0.01)
