"""What a store's journal tells becomes figures, and none without an object store."""

from __future__ import annotations

from pulsar_ray.broker.figures.remote_figures import remote_figures
from pulsar_ray.model import metric_catalogue as metrics

STATUS = {
    "url": "s3://b/p", "problem": "", "isEnded": False, "lagSeconds": 1.5, "waitingBytes": 7, "puts": 3,
    "putBytes": 100, "gets": 2, "lists": 1, "errors": 4, "unreadable": {}, "away": "", "undeleted": "",
    "cacheBytes": 50, "cacheHits": 9, "cacheMisses": 5,
}  # fmt: skip


def test_without_an_object_store_there_are_none() -> None:
    figures = remote_figures(None, 30.0)
    assert not figures.gauges
    assert not figures.counters


def test_a_journal_that_runs_tells_everything() -> None:
    figures = remote_figures(STATUS, 30.0)
    assert figures.gauges == {
        metrics.REMOTE_LAG_SECONDS.name: 1.5,
        metrics.REMOTE_LAG_BOUND_SECONDS.name: 30.0,
        metrics.REMOTE_WAITING_BYTES.name: 7.0,
        metrics.OFFLOAD_CACHE_BYTES.name: 50.0,
        metrics.REMOTE_AWAY.name: 0.0,
        metrics.REMOTE_ENDED.name: 0.0,
    }
    assert figures.counters == {
        metrics.REMOTE_PUTS.name: 3.0,
        metrics.REMOTE_PUT_BYTES.name: 100.0,
        metrics.REMOTE_GETS.name: 2.0,
        metrics.REMOTE_LISTS.name: 1.0,
        metrics.REMOTE_ERRORS.name: 4.0,
        metrics.OFFLOAD_CACHE_HITS.name: 9.0,
        metrics.OFFLOAD_CACHE_MISSES.name: 5.0,
    }


def test_away_and_ended_are_not_the_same() -> None:
    away = remote_figures({**STATUS, "away": "has not answered for 9 s"}, 30.0).gauges
    assert (away[metrics.REMOTE_AWAY.name], away[metrics.REMOTE_ENDED.name]) == (1.0, 0.0)
    ended = remote_figures({**STATUS, "isEnded": True, "problem": "taken over"}, 30.0).gauges
    assert (ended[metrics.REMOTE_AWAY.name], ended[metrics.REMOTE_ENDED.name]) == (0.0, 1.0)


def test_a_journal_that_could_not_begin_is_away_without_counts() -> None:
    figures = remote_figures({"url": "s3://b/p", "isReady": False, "problem": "refused"}, 30.0)
    assert figures.gauges[metrics.REMOTE_AWAY.name] == 1.0
    assert not figures.counters
