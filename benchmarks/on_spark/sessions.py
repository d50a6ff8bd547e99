"""Spark sessions that benchmarks run in."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.measuring.environment import Skipped
from benchmarks.measuring.measure import timed

SESSIONS = 2


def check_installed() -> None:
    """Raise Skipped where Spark or RayDP is not installed."""
    for package in ("pyspark", "raydp"):
        if importlib.util.find_spec(package) is None:
            raise Skipped(f"{package} is not installed")


@contextmanager
def session(conf: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Start Spark with two cores, on the Ray of this process."""
    import pulsar_ray_spark  # noqa: PLC0415 - only where Spark is installed

    try:
        yield pulsar_ray_spark.start("bench", executor_cores=2, executor_memory="2g", conf=conf)
    finally:
        pulsar_ray_spark.stop()


def first_of_sessions(
    works: Mapping[str, Callable[[Any], None]], conf: Mapping[str, str] | None = None
) -> dict[str, list[float]]:
    """Time each work as the first of sessions of its own; the start of Spark is not counted."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(SESSIONS):
        for name, work in works.items():
            with session(conf) as spark:
                times[name].append(timed(partial(work, spark)))
    return times
