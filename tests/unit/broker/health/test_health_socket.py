from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pulsar_ray.broker.health import health_socket
from pulsar_ray.broker.health.health_socket import HealthSocket, ask_health
from pulsar_ray.errors import Timeout, UntrustedPath
from pulsar_ray.testing.waiting import wait_until
from tests.other_user import ANYBODY, SOMEBODY, listening, needs_root

ANSWER = {"address": "127.0.0.1:6379", "report": {"healthy": True}}


class Store:
    """Counts what it is asked, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def report(self) -> dict[str, Any]:
        self.asked += 1
        await self.may_answer.wait()
        return ANSWER


@contextmanager
def serving(data_dir: Path, store: Store) -> Iterator[asyncio.AbstractEventLoop]:
    """Serve the socket on a loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    served = HealthSocket(data_dir, store.report)
    try:
        asyncio.run_coroutine_threadsafe(served.begin(), loop).result(10)
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(_closed(served), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _tasks(loop: asyncio.AbstractEventLoop) -> int:
    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    return asyncio.run_coroutine_threadsafe(others(), loop).result(10)


async def _closed(served: HealthSocket) -> None:
    served.close()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    await asyncio.sleep(0)


def test_a_probe_is_answered(tmp_path: Path) -> None:
    store = Store()
    store.may_answer.set()
    with serving(tmp_path, store):
        assert ask_health(tmp_path, 10) == ANSWER
        assert ask_health(tmp_path, 10) == ANSWER
    assert store.asked == 2


def test_probes_at_the_same_time_share_one_question(tmp_path: Path) -> None:
    store = Store()
    with serving(tmp_path, store) as loop, ThreadPoolExecutor(8) as probes:
        answers = [probes.submit(ask_health, tmp_path, 30) for _ in range(8)]
        # Eight connections that wait, and what they wait for.
        wait_until(lambda: _tasks(loop) == 9, what="eight probes")
        loop.call_soon_threadsafe(store.may_answer.set)
        assert [answer.result() for answer in answers] == [ANSWER] * 8
    assert store.asked == 1


def test_a_store_that_is_silent_is_a_timeout_and_none_is_none(tmp_path: Path) -> None:
    assert ask_health(tmp_path, 10) is None
    (tmp_path / "run").mkdir()
    assert ask_health(tmp_path, 10) is None
    with serving(tmp_path, Store()), pytest.raises(Timeout, match=r"does not answer within 0\.1 s"):
        ask_health(tmp_path, 0.1)
    assert ask_health(tmp_path, 10) is None


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    store = Store()
    store.may_answer.set()
    with serving(tmp_path, store):
        pass
    assert (tmp_path / "run" / "health.sock").exists()
    assert ask_health(tmp_path, 10) is None
    with serving(tmp_path, store):
        assert ask_health(tmp_path, 10) == ANSWER


def test_a_long_path_and_a_rude_probe(tmp_path: Path) -> None:
    data_dir = tmp_path / ("long" * 20) / ("longer" * 20)
    data_dir.mkdir(parents=True)
    store = Store()
    store.may_answer.set()
    with serving(data_dir, store):
        with socket.socket(socket.AF_UNIX) as rude:
            rude.close()
        assert ask_health(data_dir, 10) == ANSWER


@needs_root
def test_another_user_who_listens_in_our_directory_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with listening(tmp_path / "run" / "health.sock") as listener:
        with pytest.raises(UntrustedPath, match="listens"):
            ask_health(tmp_path, 10)
        assert listener.received_bytes() == 0


@needs_root
def test_root_is_answered_by_the_user_whose_directory_it_is(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", SOMEBODY, SOMEBODY)
    with (
        listening(tmp_path / "run" / "health.sock") as listener,
        pytest.raises(Timeout),  # it says nothing
    ):
        ask_health(tmp_path, 0.1)
    del listener


def test_a_link_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    assert ask_health(tmp_path, 10) is None
    with pytest.raises(UntrustedPath, match="link"), serving(tmp_path, Store()):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


@contextmanager
def answering(data_dir: Path, part: bytes) -> Iterator[None]:
    """Listen as whoever answers the same bytes again and again, until the other end goes."""
    (data_dir / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data_dir / "run" / "health.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                while True:
                    connection.sendall(part)

        thread = Thread(target=answer, daemon=True)
        thread.start()
        yield
        thread.join(30)
        assert not thread.is_alive()


def test_an_answer_without_an_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_socket, "MOST_BYTES", 1 << 20)
    with answering(tmp_path, b"[" * (1 << 16)):
        assert ask_health(tmp_path, 30) is None


def test_an_answer_that_trickles_is_given_no_more_time_than_asked_for(tmp_path: Path) -> None:
    data_dir = tmp_path
    (data_dir / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as asking:
        listener.bind(str(data_dir / "run" / "health.sock"))
        listener.listen()
        answer = asking.submit(ask_health, data_dir, 0.5)
        connection, _ = listener.accept()
        with connection:

            def is_given_up() -> bool:
                with suppress(OSError):
                    connection.sendall(b" ")
                return answer.done()

            wait_until(is_given_up, what="the end of the question")
        with pytest.raises(Timeout):
            answer.result()


@needs_root
def test_only_root_is_answered_by_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", SOMEBODY, SOMEBODY)
    with listening(tmp_path / "run" / "health.sock"):
        monkeypatch.setattr(os, "geteuid", lambda: ANYBODY)
        with pytest.raises(UntrustedPath, match="listens"):
            ask_health(tmp_path, 10)
