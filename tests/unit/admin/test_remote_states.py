"""The state of each store's journal, as administrators see it."""

from __future__ import annotations

from typing import Any

from pulsar_ray.admin.stores import Stores


class Told:
    """A broker that answers with these states."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self._states = list(states)

    def ask(self, *call: Any, **__: Any) -> Any:
        assert call == ("call_part", "lost_stores", "remote")
        return self._states


def remote_of(**said: Any) -> Any:
    told = Told({"storeId": "a", "host": "h", "url": "file:///x", "isReady": True, "problem": "", **said})
    (state,) = Stores(told).remote()  # type: ignore[arg-type]
    return state


def test_a_partition_that_is_shipped_no_further_is_a_problem_of_its_store() -> None:
    assert remote_of().problem == ""
    assert "partition 7" in remote_of(unreadable={"7": "7-0.seg ends before byte 9"}).problem
    assert remote_of(problem="away", unreadable={"7": "gone"}).problem == "away"


def test_a_bucket_that_is_away_is_a_problem_and_one_that_keeps_all_is_a_remark() -> None:
    away = remote_of(away="has not answered for 9 s: s3 says nothing")
    assert away.problem == "file:///x has not answered for 9 s: s3 says nothing"
    grows = remote_of(undeleted="journal/a/1: denied")
    assert (grows.problem, "journal/a/1: denied" in grows.remark) == ("", True)


def test_a_store_that_does_not_ship_yet_has_no_figures() -> None:
    state = remote_of(isReady=False, problem="refused")
    assert (state.is_ready, state.waiting_bytes, state.puts) == (False, 0, 0)
