"""Measure what metrics cost: the same traffic with reports on and off, by turns, and many topics."""

from __future__ import annotations

import gc
import time
import tracemalloc
import urllib.request
from typing import Any

import ray

from benchmarks.measuring.environment import Broker, Environment, run_inside
from benchmarks.measuring.inside import seconds_of_reports, stop_reporting
from benchmarks.measuring.measure import alternate, p50, rate, timed, us
from benchmarks.measuring.results import Row
from pulsar_ray.broker.figures.actor_report import StoredBacklog
from pulsar_ray.broker.figures.node_figures import NodeFigures, RestingPartition
from pulsar_ray.transport.ray_metrics import RayMetrics

MESSAGE = b"x" * 100
ROUNDS = 15
LEAST = 0.95
PERIOD_S = 0.5
"""Ten times as often as usual, so that each round has some of it."""
REPORTS = 50
SLEEPING = 10_000
LIMIT = 200
"""The default of metrics_max_topics and metrics_max_subscriptions."""


def run(env: Environment) -> list[Row]:
    """Publish and consume on two topics, one of whose actors report nothing, each way by turns."""
    ways: list[tuple[str, int, dict[str, Any]]] = [
        ("send, one after the other", env.count(4_000, 200), {}),
        (
            "send_async, batched",
            env.count(100_000, 5_000),
            {"batching_enabled": True, "max_pending_messages": 20_000},
        ),
        ("send_many, 1,000 each", env.count(300_000, 10_000), {"batching_enabled": True}),
    ]
    with env.broker(tmpfs=True, metrics_interval_seconds=PERIOD_S) as broker:
        rows = [_compare(broker, *way) for way in ways]
        rows.append(_one_report(broker))
    rows += _many_sleeping(env)
    return rows


class _Traffic:
    """A topic with a producer and a consumer; `is_silent`: its actors report nothing."""

    def __init__(self, broker: Broker, options: dict[str, Any], *, is_silent: bool) -> None:
        self.topic = broker.topic()
        self.consumer = broker.client.subscribe(self.topic, "bench", receiver_queue_size=10_000)
        self.producer = broker.client.create_producer(self.topic, block_if_queue_full=True, **options)
        self.actors = (broker.partition(self.topic), broker.dispatcher(self.topic, "bench"))
        if is_silent:
            for actor in self.actors:
                run_inside(actor, stop_reporting)

    def run(self, what: str, messages: int) -> None:
        """Publish, then receive and acknowledge all of it."""
        if what.startswith("send,"):
            for _ in range(messages):
                self.producer.send(MESSAGE)
        elif what.startswith("send_many"):
            for _ in range(messages // 1000):
                self.producer.send_many_async([MESSAGE] * 1000, None)
        else:
            for _ in range(messages):
                self.producer.send_async(MESSAGE, None)
        self.producer.flush()
        left = messages
        while left:
            table = self.consumer.receive_arrow(max_messages=left, timeout_millis=30_000)
            self.consumer.acknowledge_arrow(table)
            left -= table.num_rows

    def close(self) -> None:
        self.producer.close()
        self.consumer.close()


def _compare(broker: Broker, what: str, messages: int, options: dict[str, Any]) -> Row:
    topics = {name: _Traffic(broker, options, is_silent=name == "off") for name in ("on", "off")}
    gc.collect()
    works = {name: lambda topic=topic: topic.run(what, messages) for name, topic in topics.items()}
    times = alternate(works, ROUNDS, warm_up=2)
    # Neighbours in time are compared, so that a change of the machine meets both.
    ratio = p50([off / on for on, off in zip(times["on"], times["off"], strict=True)])
    for topic in topics.values():
        topic.close()
    on, off = (p50(times[name]) / messages for name in ("on", "off"))
    note = f"reports every {PERIOD_S} s; with receive_arrow and acknowledge_arrow"
    return Row(f"{what}, 100 B, and back, metrics on", rate(1, on), rate(1, off), ratio, LEAST, note=note)


def _one_report(broker: Broker) -> Row:
    traffic = _Traffic(broker, {}, is_silent=False)
    traffic.run("send,", 100)
    times = [p50(run_inside(actor, seconds_of_reports, REPORTS)) for actor in traffic.actors]
    traffic.close()
    return Row("one report of a partition and of its dispatcher, without sending", us(sum(times)))


def _many_sleeping(env: Environment) -> list[Row]:
    count = env.count(SLEEPING, 1000)
    tracemalloc.start()
    figures = NodeFigures("bench", LIMIT, LIMIT)
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        backlog = {"bench": StoredBacklog(number % 3, 1000, now_ms)}
        topic = f"persistent://public/default/bench-metrics-{number}"
        figures.rests(number + 1, RestingPartition(topic, 1e6, backlog))
    samples = figures.collect(now_ms)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    collect_s = p50([timed(lambda: figures.collect(now_ms)) for _ in range(5)])
    exporter = RayMetrics()
    export_s = p50([timed(lambda: exporter.export(samples)) for _ in range(5)])
    series = len(samples.gauges)
    return [
        Row(f"{count:,} sleeping topics: adding up, once a period", us(collect_s)),
        Row(f"{count:,} sleeping topics: memory of the store", f"{size / 2**20:.1f} MiB"),
        Row(
            f"{count:,} sleeping topics: series at Ray, once a period",
            us(export_s),
            note=f"{series:,} series",
        ),
        _scrape(),
    ]


def _scrape() -> Row:
    nodes: Any = ray.nodes
    (node,) = [node for node in nodes() if node["Alive"]]
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"

    def read() -> str:
        with urllib.request.urlopen(address, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    # Ray shows what was set when its next interval is over.
    deadline = time.monotonic() + 30
    while "bench-metrics-" not in read() and time.monotonic() < deadline:
        time.sleep(0.5)
    text = read()
    lines = sum(line.startswith("ray_pulsar_ray") for line in text.splitlines())
    seconds = p50([timed(read) for _ in range(5)])
    note = f"{lines:,} series of the broker, {len(text) / 2**20:.1f} MiB with Ray's own"
    return Row("a scrape of these", us(seconds), note=note)
