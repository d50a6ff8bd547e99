"""Runs a group with metrics on and off, by turns, and compares what each line reached."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from benchmarks.measuring.environment import Environment
from benchmarks.measuring.results import Row

SWITCH = "PULSAR_RAY_METRICS_INTERVAL_SECONDS"
LEAST = 0.95
"""The part of their ratios that all lines of a group together must keep with metrics on."""
Run = Callable[[Environment], list[Row]]


def run_with_and_without(run: Run, env: Environment, rounds: int) -> list[Row]:
    """Run a group so often each way; one row for all its lines, and one for each.

    Which way is first changes from round to round. One run before all does not count, since the first one in
    a process is slower.
    """
    found: dict[str, list[list[Row]]] = {"on": [], "off": []}
    run(env)
    for number in range(rounds):
        for way in ("on", "off") if number % 2 == 0 else ("off", "on"):
            with _switched(way == "on"):
                found[way].append(run(env))
    return compared(found["on"], found["off"])


@contextmanager
def _switched(is_on: bool) -> Iterator[None]:
    """Brokers that start meanwhile have metrics as by default, or none."""
    before = os.environ.pop(SWITCH, None)
    if not is_on:
        os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        os.environ.pop(SWITCH, None)
        if before is not None:
            os.environ[SWITCH] = before


def compared(on: Sequence[Sequence[Row]], off: Sequence[Sequence[Row]]) -> list[Row]:
    """Compare runs with and without metrics, line by line.

    A row's ratio is what the line reached with them over what it reached without, both against their floors.
    Below 1 they cost something, also where less is better. The first rows are medians: of these ratios, and
    of the CPU per message without them over that with them. Single lines of short runs differ by more than
    metrics could cost, and on a busy machine CPU is the steadier figure.
    """
    with_ratios, without = _ratios(on), _ratios(off)
    cpu_on, cpu_off = _cpu(on), _cpu(off)
    at_most = {row.what for rows in on for row in rows if row.at_most}
    rows = []
    for what in with_ratios.keys() & without.keys():
        mine, others = statistics.median(with_ratios[what]), statistics.median(without[what])
        if mine > 0 and others > 0:
            kept = others / mine if what in at_most else mine / others
            note = _cpu_note(what, cpu_on, cpu_off)
            rows.append(Row(what, f"{mine:.3g} with", f"{others:.3g} without", kept, note=note))
    if not rows:
        return []
    order = [row.what for row in on[0]]
    rows.sort(key=lambda row: order.index(row.what))
    median = statistics.median([row.ratio for row in rows if row.ratio])
    note = f"the median; {len(on)} runs each way"
    summed = [Row(f"all {len(rows)} lines", "", "", median, LEAST, note=note)]
    spent = [cpu_off[what] / cpu_on[what] for what in cpu_on.keys() & cpu_off.keys() if cpu_on[what]]
    if spent:
        summed.append(Row(f"CPU of {len(spent)} lines", "", "", statistics.median(spent), LEAST, note=note))
    return [*summed, *rows]


def _ratios(runs: Sequence[Sequence[Row]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for row in (row for rows in runs for row in rows):
        if row.ratio is not None:
            found.setdefault(row.what, []).append(row.ratio)
    return found


def _cpu(runs: Sequence[Sequence[Row]]) -> dict[str, float]:
    """Microseconds of all processes per message, by line."""
    found: dict[str, list[float]] = {}
    for row in (row for rows in runs for row in rows):
        if row.cpu_us:
            found.setdefault(row.what, []).append(sum(row.cpu_us.values()))
    return {what: statistics.median(values) for what, values in found.items()}


def _cpu_note(what: str, on: dict[str, float], off: dict[str, float]) -> str:
    if what not in on or not off.get(what):
        return ""
    return f"CPU us/message {on[what]:.2f}, without {off[what]:.2f}"
