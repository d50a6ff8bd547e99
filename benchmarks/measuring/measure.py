"""Percentiles, alternating slices, and CPU time of other processes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

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


def alternate(
    works: Mapping[str, Timed], rounds: int, warm_up: int = 1, in_a_row: int = 1
) -> dict[str, list[float]]:
    """Seconds of each work, by turns, so that a change of the machine meets all.

    `in_a_row`: how often each is done before the next one has its turn. With 1, whatever the others leave
    behind (their code in the processor's caches, a background thread that goes on) is part of each figure.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(0, warm_up + rounds, in_a_row):
        for name, work in works.items():
            for _ in range(in_a_row):
                took = timed(work)
                if turn >= warm_up:
                    times[name].append(took)
    return times


class CpuMeter:
    """CPU seconds of this process and of others by pid, summed over the stretches it is `running`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._seconds = dict.fromkeys(("client", *pids), 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what is used until the end of the block."""
        before = self._now()
        yield
        for name, now in self._now().items():
            self._seconds[name] += now - before[name]

    def per_message(self, messages: int) -> dict[str, float]:
        """Microseconds per message of what was counted."""
        return {name: 1e6 * seconds / messages for name, seconds in self._seconds.items()}

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


class Slices:
    """Works that move bytes, in slices that take turns; CPU is counted for the first one."""

    def __init__(self, works: Mapping[str, tuple[int, Timed]], meter: CpuMeter, rounds: int) -> None:
        self.speeds: dict[str, list[float]] = {name: [] for name in works}
        self._ours = next(iter(works))
        self._meter = meter
        for turn in range(rounds + 1):
            for name, (size, work) in works.items():
                with meter.running() if turn and name == self._ours else nullcontext():
                    speed = size / timed(work)
                if turn:
                    self.speeds[name].append(speed)

    def ratio(self, floor: str, cap: float = math.inf) -> float:
        """The median over the slices of ours over the floor, which counts at most `cap` bytes per second."""
        pairs = zip(self.speeds[self._ours], self.speeds[floor], strict=True)
        return p50([ours / min(speed, cap) for ours, speed in pairs])

    def text(self, name: str) -> str:
        """The median speed of a work."""
        return f"{p50(self.speeds[name]) / 1e6:,.0f} MB/s"

    def cpu_us(self, messages_per_slice: int) -> dict[str, float]:
        """Microseconds per message of ours."""
        return self._meter.per_message(messages_per_slice * len(self.speeds[self._ours]))
