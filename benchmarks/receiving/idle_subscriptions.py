"""Measure the publisher's cost of a subscription without consumers."""

from __future__ import annotations

import time
from typing import Any

import psutil

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import CpuMeter, p50, timed
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
KINDS = {"absent": "a subscription without consumers", "full": "a consumer whose queue is full"}
QUIET_S = 4.0
MOST_CPU = 1.02
LEAST_RATE = 0.98


def run(env: Environment) -> list[Row]:
    """Publishing to a topic without a subscription and to two with one takes turns."""
    messages, rounds = env.count(50_000, 5_000), env.count(40, 4)
    with env.broker() as broker:
        without = _Topic(broker, "")
        beside = {kind: _Topic(broker, kind) for kind in KINDS}
        topics = [without, *beside.values()]
        # Until the dispatchers have seen that nobody takes anything.
        time.sleep(QUIET_S)
        for topic in topics:
            topic.see_idle()
        time.sleep(QUIET_S)
        for topic in topics:
            topic.seen_idle()
        for turn in range(rounds + 1):
            for topic in topics[:: 1 if turn % 2 else -1]:
                topic.slice(messages, counts=turn > 0)
        return [row for kind, topic in beside.items() for row in _rows(KINDS[kind], topic, without)]


def _rows(what: str, ours: _Topic, without: _Topic) -> list[Row]:
    cpu = {name: p50([one[name] for one in ours.cpu]) for name in ours.cpu[0]}
    return [
        Row(
            f"publish beside {what}, 100 B, batched: CPU per message",
            f"{p50(ours.totals()):.2f} us",
            f"without {p50(without.totals()):.2f} us",
            p50([a / b for a, b in zip(ours.totals(), without.totals(), strict=True)]),
            MOST_CPU,
            at_most=True,
            cpu_us=cpu,
            note="less what a dispatcher's process uses while nobody publishes",
        ),
        Row(
            f"publish beside {what}: rate",
            f"{p50(ours.rates):,.0f}/s",
            f"without {p50(without.rates):,.0f}/s",
            p50([a / b for a, b in zip(ours.rates, without.rates, strict=True)]),
            LEAST_RATE,
        ),
    ]


class _Topic:
    """A topic, its producer, and the CPU of the processes behind it for each slice."""

    def __init__(self, broker: Broker, kind: str) -> None:
        name = broker.topic()
        self._producer = broker.client.create_producer(name, block_if_queue_full=True)
        self._consumer: Any = None
        if kind:
            self._consumer = broker.client.subscribe(name, "bench", receiver_queue_size=10)
            for _ in range(20):
                self._producer.send(MESSAGE)
        if kind == "absent":
            self._consumer.close()
        self._pids = broker.pids(name, "bench" if kind else None)
        self._idle = 0.0
        self._seen_at = 0.0
        self.rates: list[float] = []
        self.cpu: list[dict[str, float]] = []

    def _dispatcher_s(self) -> float:
        if "dispatcher" not in self._pids:
            return 0.0
        times = psutil.Process(self._pids["dispatcher"]).cpu_times()
        return float(times.user + times.system)

    def see_idle(self) -> None:
        """Nobody publishes from now on."""
        self._idle, self._seen_at = self._dispatcher_s(), time.perf_counter()

    def seen_idle(self) -> None:
        """Until now: what its dispatcher used per second."""
        self._idle = (self._dispatcher_s() - self._idle) / (time.perf_counter() - self._seen_at)

    def slice(self, messages: int, *, counts: bool) -> None:
        """Publish so many, durably."""
        meter = CpuMeter(self._pids)
        with meter.running():
            took = timed(lambda: self._publish(messages))
        if counts:
            cpu = meter.per_message(messages)
            if "dispatcher" in cpu:
                cpu["dispatcher"] -= 1e6 * self._idle * took / messages
            self.rates.append(messages / took)
            self.cpu.append(cpu)

    def _publish(self, messages: int) -> None:
        for _ in range(messages):
            self._producer.send_async(MESSAGE, None)
        self._producer.flush()

    def totals(self) -> list[float]:
        """Of all processes, by slice."""
        return [sum(cpu.values()) for cpu in self.cpu]
