"""Rates and counters, with the clock in hand."""

from __future__ import annotations

from pulsar_ray.model.traffic import IncomingTraffic, OutgoingTraffic, RateMeter


def test_a_rate_is_the_mean_of_the_last_ten_seconds() -> None:
    meter = RateMeter(1_000, (5, 0))
    assert meter.per_second() == (0.0, 0.0)
    meter.sample(2_000, (15, 300))
    assert meter.per_second() == (10.0, 300.0)
    for second in range(3, 13):
        meter.sample(second * 1_000, (15, 300))
    assert meter.per_second() == (0.0, 0.0), "what came eleven seconds ago has left the window"


def test_a_clock_that_stands_still_or_goes_back_adds_nothing() -> None:
    meter = RateMeter(1_000, (0,))
    meter.sample(1_000, (50,))
    meter.sample(500, (70,))
    assert meter.per_second() == (0.0,)
    meter.sample(3_000, (100,))
    assert meter.per_second() == (50.0,)


def test_late_samples_are_weighed_by_their_time() -> None:
    meter = RateMeter(0, (0,))
    meter.sample(5_000, (100,))
    assert meter.per_second() == (20.0,)


def test_outgoing_traffic_counts_redeliveries_acks_and_batches() -> None:
    traffic = OutgoingTraffic(0)
    traffic.delivered(messages=10, entries=1, size=1_000, redelivered=0, now_ms=77)
    traffic.delivered(messages=2, entries=2, size=200, redelivered=2, now_ms=88, chunks=3)
    traffic.acked(4, now_ms=99)
    traffic.sample(2_000)
    assert round(traffic.messages_per_entry, 3) == 9.1
    assert traffic.describe() == {
        "msgRateOut": 6.0,
        "msgThroughputOut": 600.0,
        "msgOutCounter": 12,
        "bytesOutCounter": 1_200,
        "msgRateRedeliver": 1.0,
        "messageAckRate": 2.0,
        "chunkedMessageRate": 1.5,
        "lastAckedTimestamp": 99,
        "lastConsumedTimestamp": 88,
        "lastConsumedFlowTimestamp": 0,
    }


def test_incoming_traffic_knows_the_mean_size() -> None:
    traffic = IncomingTraffic(0)
    zeros = {"msgRateIn": 0.0, "msgThroughputIn": 0.0, "averageMsgSize": 0.0, "chunkedMessageRate": 0.0}
    assert traffic.describe() == {**zeros, "msgChunkPublished": False}
    traffic.stored(4, 1_000, 2)
    traffic.sample(2_000)
    means = {"msgRateIn": 2.0, "msgThroughputIn": 500.0, "averageMsgSize": 250.0}
    assert traffic.describe() == {**means, "chunkedMessageRate": 1.0, "msgChunkPublished": True}
