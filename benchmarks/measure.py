"""Percentiles, alternating slices, and CPU time of other processes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

Timed = Callable[[], object]


def p50(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that `percent` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def timed(work: Timed) -> float:
    """Seconds that `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def alternate(works: Mapping[str, Timed], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Seconds of each work, one after the other in every round, so that a change of the machine meets all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warm_up + rounds):
        for name, work in works.items():
            took = timed(work)
            if turn >= warm_up:
                times[name].append(took)
    return times


class CpuMeter:
    """CPU seconds of this process and of others by pid, from `start` on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self.seconds: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        """Count from now on."""
        self._before = self._now()

    def stop(self) -> dict[str, float]:
        """Seconds since `start`."""
        now = self._now()
        return {name: now[name] - before for name, before in self._before.items()}

    def per_message(self, messages: int) -> dict[str, float]:
        """Microseconds per message since `start`."""
        return {name: 1e6 * seconds / messages for name, seconds in self.stop().items()}

    def _now(self) -> dict[str, float]:
        others = {name: process.cpu_times() for name, process in self._processes.items()}
        return {
            "client": time.process_time(),
            **{name: times.user + times.system for name, times in others.items()},
        }


def us(seconds: float) -> str:
    """Seconds as text in microseconds."""
    return f"{1e6 * seconds:,.0f} us"


def rate(count: float, seconds: float) -> str:
    """A rate as text."""
    return f"{count / seconds:,.0f}/s"


def megabytes_per_s(size: float, seconds: float) -> str:
    """Throughput as text."""
    return f"{size / seconds / 1e6:,.0f} MB/s"


class Slices:
    """Works that move bytes, in slices that take turns; CPU is counted for the first one."""

    def __init__(self, works: Mapping[str, tuple[int, Timed]], meter: CpuMeter, rounds: int) -> None:
        self.speeds: dict[str, list[float]] = {name: [] for name in works}
        self.cpu_s: dict[str, float] = {}
        self._ours = next(iter(works))
        for turn in range(rounds + 1):
            for name, (size, work) in works.items():
                meter.start()
                speed = size / timed(work)
                if turn == 0:
                    continue
                self.speeds[name].append(speed)
                if name == self._ours:
                    self.cpu_s = {who: self.cpu_s.get(who, 0.0) + s for who, s in meter.stop().items()}

    def ratio(self, floor: str, cap: float = math.inf) -> float:
        """The median over the slices of ours over the floor, which counts at most `cap` bytes per second."""
        pairs = zip(self.speeds[self._ours], self.speeds[floor], strict=True)
        return p50([ours / min(speed, cap) for ours, speed in pairs])

    def text(self, name: str) -> str:
        """The median speed of a work."""
        return f"{p50(self.speeds[name]) / 1e6:,.0f} MB/s"

    def cpu_us(self, messages_per_slice: int) -> dict[str, float]:
        """Microseconds per message of ours."""
        messages = messages_per_slice * len(self.speeds[self._ours])
        return {name: 1e6 * seconds / messages for name, seconds in self.cpu_s.items()}
