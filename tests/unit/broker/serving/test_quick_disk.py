"""When a disk is trusted to be waited for."""

from __future__ import annotations

from pulsar_ray.broker.serving.owner_loop import STALL_S, TRIAL_WRITES, QuickDisk

QUICK = 0.0003


def tried(seconds: float, writes: int) -> QuickDisk:
    disk = QuickDisk()
    for _ in range(writes):
        disk.took(seconds)
    return disk


def test_trust_takes_some_quick_writes() -> None:
    disk = tried(QUICK, TRIAL_WRITES)
    assert not disk.is_trusted
    for _ in range(2 * TRIAL_WRITES):
        disk.took(QUICK)
    assert disk.is_trusted


def test_a_slow_disk_is_never_trusted() -> None:
    assert not tried(0.004, 10 * TRIAL_WRITES).is_trusted


def test_now_and_then_a_slow_write_does_not_matter() -> None:
    disk = tried(QUICK, 10 * TRIAL_WRITES)
    for number in range(1000):
        disk.took(0.009 if number % 50 == 0 else QUICK)
        assert disk.is_trusted


def test_one_stall_however_long_starts_the_trial_anew() -> None:
    disk = tried(QUICK, 10 * TRIAL_WRITES)
    disk.took(100 * STALL_S)
    for _ in range(TRIAL_WRITES):
        assert not disk.is_trusted
        disk.took(QUICK)
    assert disk.is_trusted


def test_a_disk_that_stalls_often_is_not_trusted() -> None:
    disk = tried(QUICK, 10 * TRIAL_WRITES)
    for number in range(1000):
        disk.took(STALL_S if number % 20 == 0 else QUICK)
        assert not disk.is_trusted


def test_a_disk_that_becomes_slow_loses_trust() -> None:
    disk = tried(QUICK, 10 * TRIAL_WRITES)
    for _ in range(64):
        disk.took(0.004)
    assert not disk.is_trusted
