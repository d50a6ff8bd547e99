from __future__ import annotations

import pytest

from pulsar_ray.broker.health.disk_level import DiskLevel, DiskWatch, judge_disk
from pulsar_ray.config import GIB, Settings

TIB = 1024 * GIB


def level(free: int, total: int, **settings: int) -> DiskLevel:
    return judge_disk(free, total, Settings(**settings)).level  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [
        (500 * GIB, TIB, DiskLevel.OK),
        (TIB // 5 + 1, TIB, DiskLevel.OK),
        (TIB // 5, TIB, DiskLevel.WARNING),  # 80 % are used
        (TIB // 50, TIB, DiskLevel.WARNING),  # at the low-water mark, 2 % of a large disk
        (TIB // 50 - 1, TIB, DiskLevel.LOW),
        (2 * GIB, 8 * GIB, DiskLevel.OK),
        (2 * GIB - 1, 8 * GIB, DiskLevel.WARNING),  # twice the mark, 1 GiB of a small disk
        (GIB - 1, 8 * GIB, DiskLevel.LOW),
    ],
)
def test_a_disk_warns_long_before_it_is_low(free: int, total: int, expected: DiskLevel) -> None:
    assert level(free, total) is expected


def test_the_level_of_the_warning_is_a_setting() -> None:
    assert level(TIB // 2, TIB, disk_warning_percent=50) is DiskLevel.WARNING
    assert level(TIB // 2 + 1, TIB, disk_warning_percent=50) is DiskLevel.OK
    assert level(TIB // 50, TIB, disk_warning_percent=0) is DiskLevel.OK
    assert level(TIB // 50 - 1, TIB, disk_warning_percent=0) is DiskLevel.LOW


def test_the_reason_names_the_figures() -> None:
    state = judge_disk(100, 1000, Settings(disk_low_water_mark_bytes=40))
    assert state.reason == (
        "the disk is 90.0 % full, 100 of 1,000 bytes are free; below 40 messages are refused"
    )
    state = judge_disk(39, 1000, Settings(disk_low_water_mark_bytes=40))
    assert state.reason.endswith(
        "39 of 1,000 bytes are free, below the low-water mark of 40: messages are refused"
    )


def test_a_change_is_told_once() -> None:
    watch = DiskWatch(Settings(disk_low_water_mark_bytes=10))
    free = [50, 20, 19, 15, 9, 8, 12, 50, 60]
    told = [(at, state.level) for at in free if (state := watch.look(at, 100)) is not None]
    assert told == [
        (20, DiskLevel.WARNING),
        (9, DiskLevel.LOW),
        (12, DiskLevel.WARNING),
        (50, DiskLevel.OK),
    ]


def test_a_disk_without_a_size_is_low_or_not_by_its_free_bytes() -> None:
    assert level(0, 0) is DiskLevel.LOW
