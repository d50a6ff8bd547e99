"""`pulsar-ray wait`: what it waits for, what it says meanwhile, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.cli.target import Target
from pulsar_ray.cli.watching import wait
from pulsar_ray.errors import (
    CatalogMissing,
    ConnectError,
    PulsarException,
    ServiceUnitNotReady,
    UntrustedPath,
)
from pulsar_ray.launch import lost_catalog
from pulsar_ray.transport.ray_cluster import RayCluster
from tests.unit.cli.conftest import Run

AWAY = {"store_id": "s2", "host": "worker", "path": "/data", "partitions": 4}
LOST = {"host": "worker", "reason": "/data is empty", "is_lost": True}
Say = Callable[..., None]


def described(stores: int, expected: int = 0, **fields: Any) -> dict[str, Any]:
    broker = {"stores": ["s"] * stores, "expected_stores": expected}
    return {**broker, "away_stores": [], "refused_stores": [], **fields}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Gives the broker's answers one after the other, the last one for ever; time goes on a second each."""
    told: list[Any] = []
    now = [0.0]

    def describe(_self: object, _timeout_s: float) -> Any:
        answer = told.pop(0) if len(told) > 1 else told[0]
        if isinstance(answer, PulsarException):
            raise answer
        return answer

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(wait, "join_ray", lambda _url: True)
    monkeypatch.setattr(RayCluster, "describe_broker", describe)
    monkeypatch.setattr(lost_catalog, "refuse_without_controller", lambda: None)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return lambda *these: told.extend(these)


@pytest.mark.parametrize(
    ("broker", "wanted", "lacks"),
    [
        (described(1), None, []),
        (described(2, 3), None, ["2 of 3 stores serve"]),
        (described(2, 3), 2, []),
        (described(2), 3, ["2 of 3 stores serve"]),
        (described(1, away_stores=[AWAY]), None, ["store s2 of worker with 4 partitions is away"]),
        (described(1, refused_stores=[LOST]), None, ["no store works on worker: /data is empty"]),
        (described(1, refused_stores=[{**LOST, "is_lost": False}]), None, []),
    ],
)
def test_what_is_missing_is_named(broker: dict[str, Any], wanted: int | None, lacks: list[str]) -> None:
    assert wait.missing(broker, wanted) == lacks


def test_it_ends_when_everything_serves_and_says_each_change_once(answers: Say, run: Run) -> None:
    starting = ServiceUnitNotReady("the controller is starting")
    away = CatalogMissing("the catalog of topics is on node2")
    answers(None, starting, starting, away, described(1, 2), described(1, 2), described(2, 2))
    result = run(Target(), "wait")
    assert (result.exit_code, result.stdout) == (0, "the broker and its 2 stores serve\n")
    assert result.stderr.splitlines() == [
        "no broker runs on this Ray cluster",
        starting.text,
        away.text,
        "1 of 2 stores serve",
    ]


def test_it_gives_up_at_its_deadline(answers: Say, run: Run) -> None:
    answers(described(1, away_stores=[AWAY]))
    result = run(Target(), "wait", "--timeout-seconds", "5")
    assert result.exit_code == 3
    assert "not all serve after 5 s: store s2 of worker with 4 partitions is away" in result.stderr


def test_without_a_broker_it_ends_in_another_way(answers: Say, run: Run) -> None:
    answers(ConnectError("no Ray cluster answers at h:1"))
    result = run(Target(), "wait", "--timeout-seconds", "2")
    assert result.exit_code == 1
    assert "no Ray cluster answers at h:1" in result.stderr


def test_what_will_not_pass_by_itself_is_not_waited_for(answers: Say, run: Run) -> None:
    answers(UntrustedPath("/data belongs to user 7"))
    result = run(Target(), "wait")
    assert result.exit_code == 1
    assert "/data belongs to user 7" in result.stderr


def test_an_embedded_broker_is_not_waited_for(run: Run) -> None:
    result = run(Target("local"), "wait")
    assert result.exit_code == 1
    assert "`wait` is for a Ray cluster" in result.stderr
