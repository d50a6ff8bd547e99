"""Which closed segments leave the disk by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.topic_offload import Thresholds
from pulsar_ray.config import Settings
from pulsar_ray.ledger.segment_file import SegmentInfo

NOW_MS = 1_000_000
CLOSED = [
    (SegmentInfo(ledger, index, Path("p"), 10 * index, 100, 10 * index + 9), closed_ms)
    for ledger, index, closed_ms in ((1, 0, 400_000), (1, 1, 400_000), (2, 0, 900_000), (3, 0, 0))
]
"""Three ledgers, the last of which is open; 100 bytes each."""
HERE_BYTES = 450


def chosen(**settings: Any) -> list[str]:
    thresholds = Thresholds(PartitionPolicies(Settings(**settings)))
    return [s.path.name for s in thresholds.chosen(CLOSED, HERE_BYTES, NOW_MS)]


def test_nothing_leaves_by_itself_by_default() -> None:
    assert not Thresholds(PartitionPolicies(Settings())).are_set
    assert chosen() == []


@pytest.mark.parametrize(
    ("most_bytes", "names"),
    [
        (450, []),
        (449, ["1-0.seg"]),
        (250, ["1-0.seg", "1-1.seg"]),
        (0, ["1-0.seg", "1-1.seg", "2-0.seg", "3-0.seg"]),
    ],
)
def test_the_oldest_leave_until_little_enough_is_here(most_bytes: int, names: list[str]) -> None:
    assert chosen(managed_ledger_offload_threshold_in_bytes=most_bytes) == names


@pytest.mark.parametrize(
    ("seconds", "names"),
    [(601, []), (600, ["1-0.seg", "1-1.seg"]), (100, ["1-0.seg", "1-1.seg", "2-0.seg"])],
)
def test_ledgers_leave_that_were_closed_long_ago(seconds: int, names: list[str]) -> None:
    assert chosen(managed_ledger_offload_threshold_in_seconds=seconds) == names


def test_an_open_ledger_has_no_age() -> None:
    assert "3-0.seg" not in chosen(managed_ledger_offload_threshold_in_seconds=0)


def test_the_lag_keeps_what_was_closed_just_now() -> None:
    lag: dict[str, Any] = {"managed_ledger_offload_deletion_lag_ms": 200_000}
    assert chosen(managed_ledger_offload_threshold_in_bytes=0, **lag) == ["1-0.seg", "1-1.seg"]
    assert chosen(managed_ledger_offload_threshold_in_seconds=0, **lag) == ["1-0.seg", "1-1.seg"]


def test_a_disk_is_full_by_the_percent_that_a_policy_says() -> None:
    assert not Thresholds(PartitionPolicies(Settings())).is_full(1000, 1000)
    thresholds = Thresholds(PartitionPolicies(Settings(offload_disk_percent=80)))
    assert not thresholds.is_full(799, 1000)
    assert thresholds.is_full(800, 1000)


def test_a_sleeping_partition_is_woken_for_age_alone() -> None:
    def due_ms(**settings: Any) -> int | None:
        return Thresholds(PartitionPolicies(Settings(**settings))).next_due_ms(CLOSED)

    assert due_ms(managed_ledger_offload_threshold_in_bytes=0, offload_disk_percent=1) is None
    assert due_ms(managed_ledger_offload_threshold_in_seconds=700) == 400_000 + 700_000
    late = {"managed_ledger_offload_deletion_lag_ms": 800_000}
    assert due_ms(managed_ledger_offload_threshold_in_seconds=700, **late) == 400_000 + 800_000
