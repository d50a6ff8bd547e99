"""Counts of values in buckets."""

from __future__ import annotations

import random

from pulsar_ray.model.traffic import BucketCounts, add_numbers

ENDS = (0.1, 1.0, 5.0)


def test_a_value_counts_in_the_first_bucket_that_it_does_not_exceed() -> None:
    counts = BucketCounts(ENDS)
    for value in (0.0, 0.1, 0.11, 1.0, 5.0, 5.1, 1e9):
        counts.observe(value)
    assert counts.numbers()[:-1] == [2, 2, 1, 2]


def test_every_value_is_counted_and_summed_up() -> None:
    values = [random.Random(7).expovariate(1) for _ in range(1000)]
    counts = BucketCounts(ENDS)
    for value in values:
        counts.observe(value)
    counts.observe(2.0, times=3)
    *buckets, total = counts.numbers()
    assert sum(buckets) == 1003
    assert abs(total - sum(values) - 6.0) < 1e-6


def test_a_clock_that_was_set_back_gives_no_negative_values() -> None:
    counts = BucketCounts(ENDS)
    counts.observe(-3600.0)
    counts.observe(0.5)
    assert counts.numbers() == [1, 1, 0, 0, 0.5]


def test_histograms_add_up() -> None:
    one, other = BucketCounts(ENDS), BucketCounts(ENDS)
    one.observe(0.05)
    other.observe(3.0)
    assert add_numbers(add_numbers(None, one.numbers()), other.numbers()) == [1, 0, 1, 0, 3.05]
