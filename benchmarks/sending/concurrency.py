"""Many senders with one message outstanding each, on the real disk and with a slow fsync."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from benchmarks.measuring.environment import Broker, Environment, run_inside
from benchmarks.measuring.inside import slow_down
from benchmarks.measuring.measure import CpuMeter, p50, timed
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
ROUNDS = 5


def run(env: Environment) -> list[Row]:
    """Each sender sends its next message from the callback of the last one."""
    with env.broker() as broker:
        topic = broker.topic()
        partition_senders = _Senders(broker, topic)
        rows = [
            _row(
                "32 senders, one message outstanding each, against one",
                partition_senders,
                32,
                env.count(300, 50),
                env.count(3000, 200),
                3.0,
            ),
        ]
        for fsync_ms, limits in ((0.4, {}), (2.0, {}), (10.0, {256: 60.0})):
            run_inside(broker.partition(topic), slow_down, fsync_ms / 1000)
            for senders in (32, 256):
                each = max(10, int(env.count(1000, 100) / fsync_ms / 10))
                what = f"{senders} senders on one connection, {fsync_ms:g} ms of fsync injected, against one"
                rows.append(_row(what, partition_senders, senders, each, each * 10, limits.get(senders)))
        partition_senders.close()
    return rows


def _row(what: str, senders: _Senders, count: int, each: int, alone: int, limit: float | None) -> Row:
    meter = senders.meter()
    one: list[float] = []
    shared: list[float] = []
    apart: list[float] = []
    for _ in range(ROUNDS):
        one.append(senders.rate(senders.of_own(1), alone // ROUNDS + 1))
        with meter.running():
            apart.append(senders.rate(senders.of_own(count), each // ROUNDS + 1))
        shared.append(senders.rate(senders.of_one_producer(count), each // ROUNDS + 1))
    note = f"all on one producer: {p50(shared):,.0f}/s, {p50(shared) / p50(one):.1f} x"
    ratio = p50(apart) / p50(one)
    cpu = meter.per_message(ROUNDS * count * (each // ROUNDS + 1))
    return Row(what, f"{p50(apart):,.0f}/s", f"one {p50(one):,.0f}/s", ratio, limit, cpu_us=cpu, note=note)


class _Senders:
    """Producers of one topic, all on the client's one connection to its partition."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._producers = [broker.client.create_producer(topic) for _ in range(256)]
        self._pids = broker.pids(topic)

    def meter(self) -> CpuMeter:
        """Of the client and the partition."""
        return CpuMeter(self._pids)

    def of_own(self, count: int) -> list[Any]:
        """Senders with a producer each."""
        return self._producers[:count]

    def of_one_producer(self, count: int) -> list[Any]:
        """Senders that share a producer, which may write what waits as one block."""
        return self._producers[:1] * count

    def rate(self, producers: list[Any], each: int) -> float:
        """Messages per second, all durable."""
        finished = threading.Semaphore(0)

        def start() -> None:
            for producer in producers:
                _sender(producer, each, finished.release)
            for _ in producers:
                finished.acquire()

        return len(producers) * each / timed(start)

    def close(self) -> None:
        for producer in self._producers:
            producer.close()


def _sender(producer: Any, messages: int, finished: Callable[[], object]) -> None:
    left = messages

    def confirmed(_result: Any, _message_id: Any) -> None:
        nonlocal left
        left -= 1
        if left:
            producer.send_async(MESSAGE, confirmed)
        else:
            finished()

    producer.send_async(MESSAGE, confirmed)
