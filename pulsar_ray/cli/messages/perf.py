"""`pulsar-ray perf`: rates and latencies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from pulsar_ray.cli.console import INTERRUPTED, rate, say, size
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.messages import load as work
from pulsar_ray.cli.messages.consume import POSITIONS, TYPES
from pulsar_ray.cli.messages.load import Latencies, Load, Meter
from pulsar_ray.cli.messages.produce import COMPRESSIONS, compression_option
from pulsar_ray.cli.parameters import FiniteRange
from pulsar_ray.cli.target import WAITING, Target
from pulsar_ray.cli.watching.progress import progress

REPORT_INTERVAL_S = 1.0
_Command = TypeVar("_Command", bound=Callable[..., Any])

count_option = click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
seconds_option = click.option("--seconds", type=FiniteRange(min=0, min_open=True), help="Stop after so long.")


def _threads_option(meaning: str) -> Callable[[_Command], _Command]:
    return click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help=meaning)


@click.group(cls=BrokerCommands)
def perf() -> None:
    """Measure rates and latencies, live, until --count, --seconds or Ctrl-C.

    \b
    Example, in two terminals:
      pulsar-ray perf consume speed
      pulsar-ray perf produce speed --size 100 --seconds 10
    """


@perf.of("topic")
@click.option("--size", "size_", type=click.IntRange(min=0), default=1024, show_default=True, help="Bytes.")
@click.option("--rate", "rate_", type=FiniteRange(min=0), default=0, help="Messages a second; 0: no limit.")
@click.option("--batching/--no-batching", default=True, show_default=True, help="Store messages in batches.")
@compression_option
@click.option(
    "--max-pending",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Messages without a receipt, of each producer; sending waits there.",
)
@_threads_option("As many producers in one process, with one connection.")
@count_option
@seconds_option
def produce(
    target: Target,
    topic: str,
    size_: int,
    rate_: float,
    batching: bool,
    compression: str,
    max_pending: int,
    threads: int,
    count: int | None,
    seconds: float | None,
) -> None:
    """Send to TOPIC. Latency is from send_async to the receipt: stored durably."""
    payload = random.Random(size_).randbytes(size_)
    load = Load(threads, count)
    with target.client() as client:
        with progress(WAITING):
            producers = [
                client.create_producer(
                    topic,
                    batching_enabled=batching,
                    compression_type=COMPRESSIONS[compression],
                    max_pending_messages=max_pending,
                    block_if_queue_full=True,
                )
                for _ in range(threads)
            ]
        each = iter(producers)
        _run(
            load,
            lambda meter, quota: work.produce(next(each), payload, rate_ / threads, load, meter, quota),
            seconds,
        )


@perf.of("topic")
@click.option("-s", "--subscription", default="perf", show_default=True, help="Created if it does not exist.")
@click.option(
    "--from",
    "start",
    type=click.Choice(list(POSITIONS)),
    default="latest",
    show_default=True,
    help="Where a new subscription starts.",
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(TYPES)),
    help="Of the subscription.  [default: exclusive; with several threads shared]",
)
@_threads_option("As many consumers of the subscription.")
@count_option
@seconds_option
def consume(
    target: Target,
    topic: str,
    subscription: str,
    start: str,
    kind: str | None,
    threads: int,
    count: int | None,
    seconds: float | None,
) -> None:
    """Receive from TOPIC and acknowledge; latency is from publishing to receiving by this machine's clock."""
    kind = kind or ("exclusive" if threads == 1 else "shared")
    load = Load(threads, count)
    with target.client() as client:
        with progress(WAITING):
            consumers = [
                client.subscribe(topic, subscription, TYPES[kind], initial_position=POSITIONS[start])
                for _ in range(threads)
            ]
        each = iter(consumers)
        _run(load, lambda meter, _: work.consume(next(each), load, meter), seconds)


def _run(load: Load, each: Callable[[Meter, int | None], None], seconds: float | None) -> None:
    """Report until the load is done, time is up or Ctrl-C; then the whole."""
    started = time.perf_counter()
    was_interrupted = False
    report = partial(_Report, load)
    last = first = report()
    try:
        load.start(each)
        while load.is_running and (seconds is None or time.perf_counter() - started < seconds):
            load.wait(REPORT_INTERVAL_S if seconds is None else min(REPORT_INTERVAL_S, seconds))
            now = report()
            say(now.since(last))
            last = now
    except KeyboardInterrupt:
        was_interrupted = True
    load.finish()
    click.echo(report().since(first))
    if was_interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


class _Report:
    """The figures of all threads at one moment."""

    def __init__(self, load: Load) -> None:
        self._at = time.perf_counter()
        self._messages = sum(meter.messages for meter in load.meters)
        self._bytes = sum(meter.bytes for meter in load.meters)
        self._latencies = Latencies.total([meter.latencies.copy() for meter in load.meters])

    def since(self, earlier: _Report) -> str:
        """Describe the load between two reports in a line."""
        seconds = self._at - earlier._at
        messages = self._messages - earlier._messages
        transferred = size((self._bytes - earlier._bytes) / seconds if seconds > 0 else 0)
        latencies = self._latencies.since(earlier._latencies)
        return f"{messages:>12,} messages  {rate(messages, seconds)}  {transferred}/s  {latencies.summary()}"
