"""Measure a message's cost on an event loop.

`await send` in 256 tasks is compared with 256 `send_async` under way.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pulsar_ray.asyncio
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import CpuMeter, p50, rate, timed
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
TASKS = 256
ROUNDS = 5


def run(env: Environment) -> list[Row]:
    """CPU of the client per message; the rounds of both clients take turns."""
    messages = env.count(60_000, 2_560) // TASKS * TASKS
    with env.broker() as broker, closing(asyncio.new_event_loop()) as loop:
        rounds: dict[str, _Synchronous | _Asyncio] = {
            "send_async, 256 under way, 100 B, batching off": _Synchronous(broker),
            "await send in 256 tasks, 100 B, batching off": _Asyncio(broker, loop, batching_enabled=False),
            "await send in 256 tasks, 100 B, batches of 256": _Asyncio(
                broker, loop, batching_max_messages=TASKS
            ),
        }
        receiving = _Receiving(broker, loop)
        for one in rounds.values():
            one.send(messages // 4)
        receiving.prepare(messages // 4)
        receiving.receive(messages // 4)
        for _ in range(ROUNDS):
            for one in rounds.values():
                one.measure(one.send, messages)
            receiving.measure(receiving.receive, messages)
        (_, synchronous), *_ = rounds.items()
        rows = [one.row(what, synchronous) for what, one in rounds.items()]
        rows.append(receiving.row("await receive and acknowledge, 100 B", None))
        for one in rounds.values():
            one.close()
        receiving.close()
    return rows


class _Measured:
    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._cpu: list[dict[str, float]] = []
        self._wall: list[float] = []

    def measure(self, work: Callable[[int], None], messages: int) -> None:
        gc.collect()
        self.prepare(messages)
        meter = CpuMeter(self._pids)
        with meter.running():
            self._wall.append(timed(lambda: work(messages)) / messages)
        self._cpu.append(meter.per_message(messages))

    def prepare(self, messages: int) -> None:
        """Do the part that is not measured."""

    @property
    def client_us(self) -> float:
        return p50([one["client"] for one in self._cpu])

    def row(self, what: str, beside: _Measured | None) -> Row:
        cpu = {name: p50([one[name] for one in self._cpu]) for name in self._cpu[0]}
        ratio = None if beside is None else self.client_us / beside.client_us
        return Row(what, f"{self.client_us:.2f} us", ratio=ratio, cpu_us=cpu, note=rate(1, p50(self._wall)))


class _Synchronous(_Measured):
    def __init__(self, broker: Broker) -> None:
        topic = broker.topic()
        self._producer = broker.client.create_producer(topic)
        super().__init__(broker.pids(topic))

    def send(self, messages: int) -> None:
        """As many under way as there are tasks in the other: each receipt sends the next."""
        producer, left, done = self._producer, messages, threading.Event()
        confirmed = 0

        def receipt(_result: Any, _message_id: Any) -> None:
            nonlocal left, confirmed
            confirmed += 1
            if left:
                left -= 1
                producer.send_async(MESSAGE, receipt)
            elif confirmed == messages:
                done.set()

        left -= TASKS
        for _ in range(TASKS):
            producer.send_async(MESSAGE, receipt)
        done.wait()

    def close(self) -> None:
        self._producer.close()


class _Asyncio(_Measured):
    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        topic = broker.topic()
        self._loop = loop
        self._client = pulsar_ray.asyncio.Client()
        self._producer = loop.run_until_complete(self._client.create_producer(topic, **options))
        super().__init__(broker.pids(topic))

    def send(self, messages: int) -> None:
        async def task() -> None:
            producer = self._producer
            for _ in range(messages // TASKS):
                await producer.send(MESSAGE)

        async def tasks() -> None:
            await asyncio.gather(*(task() for _ in range(TASKS)))

        self._loop.run_until_complete(tasks())

    def close(self) -> None:
        self._loop.run_until_complete(self._client.close())


class _Receiving(_Measured):
    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        topic = broker.topic()
        self._loop = loop
        self._client = pulsar_ray.asyncio.Client()
        self._consumer = loop.run_until_complete(self._client.subscribe(topic, "s"))
        self._producer = broker.client.create_producer(topic, batching_enabled=True)
        super().__init__(broker.pids(topic, "s"))

    def prepare(self, messages: int) -> None:
        self._producer.send_many([MESSAGE] * messages)

    def receive(self, messages: int) -> None:
        async def task() -> None:
            consumer = self._consumer
            for _ in range(messages):
                await consumer.acknowledge(await consumer.receive())

        self._loop.run_until_complete(task())

    def close(self) -> None:
        self._producer.close()
        self._loop.run_until_complete(self._client.close())
