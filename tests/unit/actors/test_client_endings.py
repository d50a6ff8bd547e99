"""How the end of a client's worker is found out, of many at once and of a Ray that does not say it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_ray.actors import client_endings


def test_workers_that_end_together_are_asked_for_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread is kept by one that Ray does not know the end of yet."""
    places = [f"a node/worker {number}" for number in range(20)]
    asked: set[str] = set()

    def ended(node_id: str, worker_id: str) -> bool | None:
        asked.add(f"{node_id}/{worker_id}")
        return True if len(asked) == len(places) else None

    async def run() -> list[bool]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return list(await asyncio.gather(*map(client_endings.ended_by_ray, places)))

    monkeypatch.setattr(client_endings, "worker_ended", ended)
    monkeypatch.setattr(client_endings, "draining_nodes", set)
    assert asyncio.run(run()) == [True] * len(places)


@pytest.mark.parametrize("draining", [True, False])
@pytest.mark.parametrize("ended", [None, False])
def test_of_a_worker_that_was_not_ended_on_purpose_the_node_decides(
    monkeypatch: pytest.MonkeyPatch, ended: bool | None, draining: bool
) -> None:
    monkeypatch.setattr(client_endings, "PATIENCE_S", 0.01 if ended is None and not draining else 60)
    monkeypatch.setattr(client_endings, "worker_ended", lambda *_: ended)
    monkeypatch.setattr(client_endings, "draining_nodes", lambda: {"a node"} if draining else set())
    monkeypatch.setattr(client_endings, "raylet_is_gone", lambda _: False)
    assert asyncio.run(client_endings.ended_by_ray("a node/a worker")) == draining


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_node_that_ray_still_takes_for_alive_is_asked_itself(
    monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    monkeypatch.setattr(client_endings, "PATIENCE_S", 0.01)
    monkeypatch.setattr(client_endings, "worker_ended", lambda *_: None)
    monkeypatch.setattr(client_endings, "draining_nodes", set)
    monkeypatch.setattr(client_endings, "raylet_is_gone", lambda node: node == "a node" and is_gone)
    assert asyncio.run(client_endings.ended_by_ray("a node/a worker")) == is_gone


def test_a_ray_that_does_not_answer_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    async def run() -> bool:
        ended = await client_endings.ended_by_ray("a node/a worker")
        assert not answers.is_set()
        answers.set()
        return ended

    monkeypatch.setattr(client_endings, "PATIENCE_S", 0.01)
    monkeypatch.setattr(client_endings, "worker_ended", lambda *_: answers.wait(60))
    monkeypatch.setattr(client_endings, "raylet_is_gone", lambda _: answers.wait(60))
    monkeypatch.setattr(client_endings, "RAYLET_ANSWER_S", 0.01)
    assert not asyncio.run(run())


def test_a_ray_that_does_not_say_it_ends_nobody_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: str) -> bool | None:
        raise AttributeError("no such internal")

    monkeypatch.setattr(client_endings, "worker_ended", unknown)
    assert not asyncio.run(client_endings.ended_by_ray("a node/a worker"))
