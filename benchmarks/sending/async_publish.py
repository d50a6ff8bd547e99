"""Measure the client's cost of publishing: send_async, batched and not, and send_many."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import CpuMeter, p50, rate, timed
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
ROUNDS = 5


def run(env: Environment) -> list[Row]:
    """CPU of the client per message; the rounds of batched and unbatched take turns."""
    messages = env.count(200_000, 10_000)
    with env.broker() as broker:
        batched = _Publisher(broker, batching_enabled=True, max_pending_messages=20_000)
        unbatched = _Publisher(broker)
        many = _Publisher(broker, batching_enabled=True)
        batched.send_async(messages // 4)
        unbatched.send_async(messages // 4)
        many.send_many(messages // 4)
        for _ in range(ROUNDS):
            batched.measure(batched.send_async, messages)
            unbatched.measure(unbatched.send_async, messages)
            many.measure(many.send_many, messages)
        rows = [
            batched.row("send_async 100 B, batched, with callback", 3.0),
            unbatched.row("send_async 100 B, batching off, default settings, queue waits", 5.0),
            Row(
                "rate of batching off over batched",
                rate(1, unbatched.wall()),
                rate(1, batched.wall()),
                batched.wall() / unbatched.wall(),
                0.5,
            ),
            many.row("send_many, 1,000 x 100 B", 0.5),
        ]
        for publisher in (batched, unbatched, many):
            publisher.close()
    return rows


class _Publisher:
    def __init__(self, broker: Broker, **options: Any) -> None:
        topic = broker.topic()
        self._producer = broker.client.create_producer(topic, block_if_queue_full=True, **options)
        self._pids = broker.pids(topic)
        self._cpu: list[dict[str, float]] = []
        self._wall: list[float] = []
        self._confirmed = 0

    def _on_receipt(self, _result: Any, _message_id: Any) -> None:
        self._confirmed += 1

    def send_async(self, messages: int) -> None:
        producer, message, callback = self._producer, MESSAGE, self._on_receipt
        wanted = self._confirmed + messages
        for _ in range(messages):
            producer.send_async(message, callback)
        producer.flush()
        assert self._confirmed == wanted

    def send_many(self, messages: int) -> None:
        values = [MESSAGE] * 1000
        done: list[int] = []
        for _ in range(messages // 1000):
            self._producer.send_many_async(values, lambda *_: done.append(1))
        self._producer.flush()
        assert len(done) == messages // 1000

    def measure(self, work: Callable[[int], None], messages: int) -> None:
        gc.collect()
        meter = CpuMeter(self._pids)
        with meter.running():
            self._wall.append(timed(lambda: work(messages)) / messages)
        self._cpu.append(meter.per_message(messages))

    def wall(self) -> float:
        return p50(self._wall)

    def row(self, what: str, limit_us: float) -> Row:
        cpu = {name: p50([one[name] for one in self._cpu]) for name in self._cpu[0]}
        return Row(
            what,
            f"{cpu['client']:.2f} us",
            ratio=cpu["client"],
            limit=limit_us,
            at_most=True,
            cpu_us=cpu,
            note=rate(1, self.wall()),
        )

    def close(self) -> None:
        self._producer.close()
