"""Replicas of a Serve deployment follow the length of their task queue."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_ray.errors import Timeout

pytest.importorskip("fastapi")

from pulsar_ray import serve
from pulsar_ray.serve import QueueLengthPolicy, TaskQueueConfig


def wanted(policy: QueueLengthPolicy, replicas: int, requests: int) -> tuple[float, dict[str, Any]]:
    config = SimpleNamespace(get_target_ongoing_requests=lambda: 5)
    context: Any = SimpleNamespace(current_num_replicas=replicas, total_num_requests=requests, config=config)

    async def run() -> tuple[float, dict[str, Any]]:
        policy(context)
        if policy._poll is not None:
            await policy._poll
        return policy(context)

    return asyncio.run(run())


def test_waiting_tasks_and_requests_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_subscription", lambda _admin, _topic: {"msgBacklog": 40})
    policy = QueueLengthPolicy("jobs")
    assert wanted(policy, 2, 10) == (10.0, {"queue_length": 40})
    assert wanted(policy, 0, 0) == (1, {"queue_length": 40})


def test_a_broker_that_does_not_answer_leaves_the_last_length(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = QueueLengthPolicy("jobs", poll_interval_s=0.001)
    monkeypatch.setattr(serve, "_subscription", lambda _admin, _topic: {"msgBacklog": 5})
    assert wanted(policy, 1, 0)[1] == {"queue_length": 5}

    def silent(_admin: Any, _topic: str) -> dict[str, Any]:
        raise Timeout("no answer")

    monkeypatch.setattr(serve, "_subscription", silent)
    assert wanted(policy, 1, 0)[1] == {"queue_length": 5}


def test_an_empty_queue_needs_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_subscription", lambda _admin, _topic: {})
    assert wanted(QueueLengthPolicy("jobs"), 0, 0) == (0, {"queue_length": 0})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"retry_delay_seconds": 0}, ValueError),
        ({"max_results": 0}, ValueError),
        ({"broker_url": "redis://"}, TypeError),
        (7, TypeError),
    ],
)
def test_what_the_adapter_does_not_know_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        TaskQueueConfig.of(given)
