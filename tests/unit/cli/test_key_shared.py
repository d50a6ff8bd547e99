"""`pulsar-ray topics`: the commands that explain Key_Shared subscriptions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_ray.errors import NotAllowedError
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget

BLOCKED: dict[str, Any] = {
    "reason": "messages wait for hashes that drain",
    "hashes": [
        {
            "hash": 2862,
            "reason": "moved to c2 and still drains at c1 (2 unacknowledged)",
            "owner": "c2",
            "heldBy": [{"consumerName": "c1", "unackMsgs": 2, "messageIds": [[7, 1, -1], [7, 2, -1]]}],
            "waitingMessages": 1234,
            "firstWaiting": [7, 3, -1],
            "blockedMs": 61_250,
        }
    ],
    "consumers": [{"consumerName": "c3", "waitingMessages": 5, "reason": "its queue is full"}],
}
FREE: dict[str, Any] = {"reason": "nothing waits", "hashes": [], "consumers": []}


def test_why_blocked_names_hash_consumers_and_time(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.answers["why_blocked"] = BLOCKED
    result = run(target, "topics", "why-blocked", "t", "-s", "a")
    assert result.exit_code == 0, result.output
    assert target.the_admin.calls == [("why_blocked", "t", "a"), "close"]
    assert result.stdout.splitlines() == [
        "t: messages wait for hashes that drain",
        "  hash 2862, 1,234 waiting for 61.2 s: moved to c2 and still drains at c1 (2 unacknowledged)",
        "  consumer c3, 5 waiting: its queue is full",
    ]


def test_why_blocked_of_a_partitioned_topic_tells_each_partition(run: Run) -> None:
    target = FakeTarget()
    found = {"partitions": {"t-partition-0": FREE, "t-partition-1": BLOCKED}}
    target.the_admin.answers["why_blocked"] = found
    lines = run(target, "topics", "why-blocked", "t", "-s", "a").stdout.splitlines()
    assert lines[0] == "t-partition-0: nothing waits"
    assert lines[1] == "t-partition-1: messages wait for hashes that drain"
    as_json = run(target, "topics", "why-blocked", "t", "-s", "a", "--json")
    assert json.loads(as_json.stdout) == found


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ({"key": "k", "hash": 6067, "owner": "c3", "drainedBy": []}, "t: hash 6067, owner c3"),
        ({"key": "k", "hash": 6067, "owner": None, "drainedBy": []}, "t: hash 6067, owner nobody"),
        (
            {"key": "k", "hash": 6067, "owner": "c3", "drainedBy": ["c1", "c2"]},
            "t: hash 6067, owner c3, still drained by c1, c2",
        ),
        (
            {"partitions": {"p0": {"key": "k", "hash": 1, "owner": "c", "drainedBy": []}}},
            "p0: hash 1, owner c",
        ),
    ],
)
def test_key_owner_says_hash_owner_and_who_still_drains_it(
    run: Run, found: dict[str, Any], line: str
) -> None:
    target = FakeTarget()
    target.the_admin.answers["key_owner"] = found
    result = run(target, "topics", "key-owner", "t", "-s", "a", "k")
    assert result.stdout == f"{line}\n"
    assert target.the_admin.calls == [("key_owner", "t", "a", "k"), "close"]


def test_what_is_refused_is_one_line_and_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeTarget()

    def refuse(*_: str) -> None:
        raise NotAllowedError("the subscription's consumers are not Key_Shared: no key has an owner")

    monkeypatch.setattr(target.the_admin.topics, "key_owner", refuse, raising=False)
    result = run(target, "topics", "key-owner", "t", "-s", "a", "k")
    assert result.exit_code == 1
    assert "not Key_Shared" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("why-blocked", "t"), ("key-owner", "t", "-s", "a")], ids=" ".join)
def test_wrong_usage_asks_nobody(run: Run, arguments: tuple[str, ...]) -> None:
    target = FakeTarget()
    assert run(target, "topics", *arguments).exit_code == 2
    assert target.the_admin.calls == []
