"""`python -m benchmarks [names...]`: run groups, print their tables, keep them as JSON."""

from __future__ import annotations

import argparse
import importlib
import tempfile
import traceback
from pathlib import Path

from rich.console import Console

from benchmarks.measuring import machine
from benchmarks.measuring.environment import Environment, Skipped
from benchmarks.measuring.metrics_cost import run_with_and_without
from benchmarks.measuring.results import Report

GROUPS = {
    "latency": "sending.latency",
    "async_publish": "sending.async_publish",
    "deduplication": "sending.deduplication",
    "asyncio": "sending.asyncio",
    "consume": "receiving.consume",
    "arrow": "sending.arrow",
    "schemas": "sending.schemas",
    "compaction": "running.compaction",
    "chunks": "sending.chunks",
    "concurrency": "sending.concurrency",
    "fan_out": "receiving.fan_out",
    "key_shared": "receiving.key_shared",
    "many_consumers": "receiving.many_consumers",
    "dispatcher_state": "receiving.dispatcher_state",
    "cursor_opening": "running.cursor_opening",
    "idle_subscriptions": "receiving.idle_subscriptions",
    "many_subscriptions": "receiving.many_subscriptions",
    "idle_topics": "running.idle_topics",
    "metrics": "running.metrics",
    "policies": "sending.policies",
    "quotas": "sending.quotas",
    "dead_letters": "receiving.dead_letters",
    "serve_tasks": "receiving.serve_tasks",
    "delayed": "receiving.delayed",
    "non_persistent": "sending.non_persistent",
    "ray_carrier": "sending.ray_carrier",
    "memory": "running.memory",
    "recovery": "running.recovery",
    "history": "running.history",
    "startup": "running.startup",
    "http": "running.http",
    "remote": "running.remote",
    "offload": "running.offload",
    "moves": "running.moves",
    "spark_read": "on_spark.spark_read",
    "spark_stream": "on_spark.spark_stream",
    "spark_write": "on_spark.spark_write",
    "spark_schemas": "on_spark.spark_schemas",
    "spark_kafka": "on_spark.spark_kafka",
    "peers": "peers",
}
"""Module of each group, in the order in which all of them run."""


def main() -> int:
    """0 unless a group failed to run: what is not reached is for the reader of the table to judge."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of: {', '.join(GROUPS)}; all without any")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the results there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="renew the tables in this document")
    parser.add_argument(
        "--disk",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="DIR",
        help="a directory on the disk to measure (default: %(default)s)",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="shorten every run to this part")
    parser.add_argument(
        "--metrics-cost",
        type=int,
        default=0,
        metavar="RUNS",
        help="run each group so often with metrics and so often without, by turns, and compare its lines",
    )
    given = parser.parse_args()
    if unknown := set(given.names) - GROUPS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    console = Console(width=200)
    report = Report(machine.describe(given.disk))
    console.print(report.machine)
    env = Environment(given.disk, given.scale)
    failed = False
    for name in given.names or GROUPS:
        try:
            run = importlib.import_module(f"benchmarks.{GROUPS[name]}").run
            if given.metrics_cost:
                title = f"{name}, with metrics against without"
                report.groups[title] = run_with_and_without(run, env, given.metrics_cost)
            else:
                title = name
                report.groups[title] = run(env)
            report.print_group(console, title)
        except Skipped as reason:
            report.skipped[name] = str(reason)
            console.print(f"{name}: not run, {reason}")
        except Exception as error:  # noqa: BLE001 - the other groups go on
            failed = True
            report.skipped[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
    if given.json:
        report.write_json(given.json)
    if given.markdown:
        report.write_markdown(given.markdown)
    judged = [row.is_reached for rows in report.groups.values() for row in rows if row.limit is not None]
    console.print(f"{judged.count(True)} of {len(judged)} lines reached what they must")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
