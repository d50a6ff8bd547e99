"""Requests that an actor answers later."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path
from typing import Any, cast

import pytest

from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import PROTOCOL_VERSION, Done, Failed, Request, decode_request
from pulsar_ray.session.session_table import Session


def test_an_answer_that_was_given_up_before_it_began_leaves_nothing_behind(tmp_path: Path) -> None:
    begun: list[str] = []

    async def work(name: str) -> None:
        begun.append(name)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        host = SessionHost(loop, tmp_path, "127.0.0.1", Settings(), SystemClock(), 1)
        host.answer(Session(1, "client", 0), 1, work, "given up")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        host.answer(Session(1, "client", 0), 2, work, "done")
        await asyncio.sleep(0)
        await host.close()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert [str(warning.message) for warning in said if warning.category is RuntimeWarning] == []
    assert begun == ["done"]


class Sent:
    """A carrier that keeps what is sent."""

    kind = "memory"
    unsent_bytes = 0

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def send(self, buffers: list[Any]) -> None:
        self.requests.append(decode_request(decode_packet(b"".join(buffers))))

    def close(self, error: object = None) -> None: ...


def test_a_client_that_waits_for_no_answer_is_refused_further_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.broker.serving.session_host.MOST_CALLS", 3)

    async def run() -> list[Request]:
        host = SessionHost(asyncio.get_running_loop(), tmp_path, "127.0.0.1", Settings(), SystemClock(), 1)
        session, carrier = Session(1, "client", 0), Sent()
        session.carry_by(cast("Any", carrier))
        may_answer = asyncio.Event()
        for request_id in range(1, 6):
            host.answer_call(session, request_id, may_answer.wait)
        await asyncio.sleep(0)
        may_answer.set()
        while len(carrier.requests) < 5:
            await asyncio.sleep(0)
        host.answer_call(session, 6, may_answer.wait)
        while len(carrier.requests) < 6:
            await asyncio.sleep(0)
        await host.close()
        return carrier.requests

    answers = asyncio.run(run())
    assert [(type(answer), answer[0]) for answer in answers] == [
        (Failed, 4),
        (Failed, 5),
        (Done, 1),
        (Done, 2),
        (Done, 3),
        (Done, 6),
    ]
    assert isinstance(answers[0], Failed)
    assert "wait for some" in answers[0].text


class Ends:
    """A server whose clients have messages in hand."""

    def __init__(self) -> None:
        self.ended: list[bool] = []

    def end_deliveries(self, session: Session) -> bool:
        return session.client_id == "works"

    def on_session_ended(self, _session: Session, crashed: bool) -> None:
        self.ended.append(crashed)

    def tick(self) -> None: ...

    def attach_details(self) -> dict[str, Any]:
        return {"epoch": 1, "reach": ("", ""), "directory": ""}


@pytest.mark.parametrize("in_order", [True, False])
def test_a_process_that_was_ended_on_purpose_has_not_crashed(tmp_path: Path, in_order: bool) -> None:
    async def run() -> list[Any]:
        host = SessionHost(asyncio.get_running_loop(), tmp_path, "127.0.0.1", Settings(), SystemClock(), 1)
        server, asked, may_answer = Ends(), [], asyncio.Event()
        host.serve(cast("Any", server))

        async def ended_in_order(place: str) -> bool:
            asked.append(place)
            await may_answer.wait()
            return in_order

        host.ended_in_order = ended_in_order
        for client_id in ("idle", "works"):
            reply = await host.attach(client_id, PROTOCOL_VERSION, False, 1, f"node/{client_id}")
            (session,) = host.sessions
            await host.client_died(reply["session_id"])
        await host.attach("another", PROTOCOL_VERSION, False, 1, "node/another")
        told: list[Any] = [list(server.ended)]
        wanting = asyncio.ensure_future(host.outlast([session, *host.sessions]))
        await asyncio.sleep(0)
        may_answer.set()
        assert await wanting, "who wants its place comes in behind the answer"
        told += [list(server.ended), asked]
        await host.close()
        return told

    assert asyncio.run(run()) == [[True], [True, not in_order], ["node/works"]]
