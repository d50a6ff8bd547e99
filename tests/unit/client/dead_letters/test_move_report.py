"""Reports of moved messages reach stats although one of them is lost."""

from __future__ import annotations

import weakref
from typing import Any

from pulsar_ray.client.dead_letters.dead_letter_mover import MoveReport


class Partition:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, str]] = []
        self.session: Any = self

    def is_gone(self) -> bool:
        return False

    def report_moves(self, moved: int, error: str) -> None:
        self.reports.append((moved, error))


def test_the_reason_of_each_failure_is_reported_again_and_new_only_once() -> None:
    partition: Any = Partition()
    report = MoveReport()
    assert [report.failed([partition], "full") for _ in range(2)] == [True, False]
    report.send()
    assert not report.failed([partition], "full")
    report.send()  # the one before may have been lost
    report.send()
    report.moved(partition, 3)
    report.send()
    assert partition.reports == [(0, "full"), (0, "full"), (3, "")]


def test_a_partition_that_is_gone_is_not_kept() -> None:
    partition: Any = Partition()
    known = weakref.ref(partition)
    report = MoveReport()
    report.moved(partition, 1)
    report.failed([partition], "full")
    report.send()
    partition.session = None
    del partition
    assert known() is None
