"""A hundred consumers of one Shared subscription, against four and one."""

from __future__ import annotations

import threading
import time
from typing import Any

import psutil
import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 100
PROCESSES = 4
ROUNDS = 5
FEW = 4
MANY = 100
QUEUED = 20_000
"""In all receiver queues together."""
AT_ONCE = 100
"""Messages that a consumer takes with one `batch_receive` at most."""


def run(env: Environment) -> list[Row]:
    """Everything is stored first, an entry for each message; the numbers of consumers take turns."""
    messages = env.count(200_000, 20_000)
    with env.broker(max_unacked_messages_per_subscription=0) as broker:
        topic = _stored(broker, messages)
        decorate: Any = ray.remote(num_cpus=0)
        actors = [decorate(_Consumers).remote() for _ in range(PROCESSES)]
        runs: dict[int, list[tuple[float, float]]] = {1: [], FEW: [], MANY: []}
        for number in range(ROUNDS):
            for consumers, told in runs.items():
                told.append(_consumed(broker, actors, topic, f"{consumers}-{number}", consumers, messages))
        for actor in actors:
            ray.kill(actor)
    return [_row(runs, FEW, "4 consumers"), _row(runs, 1, "one")]


def _row(runs: dict[int, list[tuple[float, float]]], against: int, name: str) -> Row:
    rates = {consumers: [rate for rate, _ in told] for consumers, told in runs.items()}
    cpu = {consumers: p50([us for _, us in told]) for consumers, told in runs.items()}
    return Row(
        f"Shared, {MANY} consumers together in {PROCESSES} processes, 100 B, an entry each",
        f"{p50(rates[MANY]):,.0f}/s",
        f"{name} {p50(rates[against]):,.0f}/s",
        p50([a / b for a, b in zip(rates[MANY], rates[against], strict=True)]),
        cpu_us={"dispatcher": cpu[MANY]},
        note=f"dispatcher of {name}: {cpu[against]:.2f} us/message",
    )


def _stored(broker: Broker, messages: int) -> str:
    topic = broker.topic()
    broker.client.subscribe(topic, "keeps").close()
    producer = broker.client.create_producer(topic, batching_enabled=False)
    values = [MESSAGE] * 1000
    for _ in range(0, messages, 1000):
        producer.send_many_async(values, None)
    producer.flush()
    producer.close()
    return topic


class _Consumers:
    """Some consumers, a thread each, in a process of their own."""

    def __init__(self) -> None:
        self._client = pulsar_ray.Client()
        self._consumers: list[Any] = []

    def open(self, topic: str, subscription: str, count: int, queue: int) -> None:
        """Subscribe so many."""
        self._consumers = [
            self._client.subscribe(
                topic,
                subscription,
                pulsar_ray.ConsumerType.Shared,
                initial_position=pulsar_ray.InitialPosition.Earliest,
                batch_receive_policy=pulsar_ray.ConsumerBatchReceivePolicy(AT_ONCE, -1, 1000),
                receiver_queue_size=queue,
            )
            for _ in range(count)
        ]

    def run(self) -> tuple[int, float]:
        """Consume until nothing has come for a second: how many, and when the last."""
        results: list[tuple[int, float]] = []
        threads = [
            threading.Thread(target=lambda one=one: results.append(_consume(one))) for one in self._consumers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(count for count, _ in results), max(last for _, last in results)

    def close(self) -> None:
        """They leave."""
        for consumer in self._consumers:
            consumer.close()


def _consume(consumer: Any) -> tuple[int, float]:
    count, last = 0, 0.0
    while True:
        messages = consumer.batch_receive()
        if not messages:
            return count, last
        for message in messages:
            consumer.acknowledge(message)
        count += len(messages)
        if len(messages) == AT_ONCE:
            # For what fills no call it waits for a second.
            last = time.time()


def _consumed(
    broker: Broker, actors: list[Any], topic: str, subscription: str, consumers: int, messages: int
) -> tuple[float, float]:
    """Messages per second of all consumers together, and the dispatcher's CPU per message in us."""
    actors = actors[:consumers]
    each, queue = consumers // len(actors), QUEUED // consumers
    ray.get([actor.open.remote(topic, subscription, each, queue) for actor in actors])
    dispatcher = psutil.Process(broker.pid(broker.dispatcher(topic, subscription)))
    before, began = sum(dispatcher.cpu_times()[:2]), time.time()
    told: list[tuple[int, float]] = ray.get([actor.run.remote() for actor in actors])
    used = sum(dispatcher.cpu_times()[:2]) - before
    ray.get([actor.close.remote() for actor in actors])
    got = sum(count for count, _ in told)
    if got < messages:
        raise RuntimeError(f"{got} of {messages} messages came to {subscription}")
    return got / (max(last for _, last in told) - began), 1e6 * used / got
