"""Measure how soon a policy reaches a running partition, and how exactly a rate is kept."""

from __future__ import annotations

import time

import ray

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import p50, timed
from benchmarks.measuring.results import Row

MOST_S = 1.0
RATE = 2_000
RATE_RUN_S = 4
LEAST_OF_RATE, MOST_OF_RATE = 0.95, 1.05
MESSAGE = b"x" * 100


def run(env: Environment) -> list[Row]:
    """Change policies of a topic that runs, then publish faster than a rate allows."""
    changes, seconds = env.count(20, 3), env.count(RATE_RUN_S, 2)
    with env.broker() as broker, pulsar_ray.Admin() as admin:
        return [*_changes(broker, admin, changes), *_rates(broker, admin, seconds)]


def _changes(broker: Broker, admin: pulsar_ray.Admin, changes: int) -> list[Row]:
    name = broker.topic()
    producer = broker.client.create_producer(name)
    producer.send(MESSAGE)
    floor = _Floor.remote()  # type: ignore[attr-defined]
    ray.get(floor.nothing.remote())
    first = timed(lambda: admin.topics.policies.set(name, "max_consumers", 5))
    calls, reaches, floors = [], [], []
    for turn in range(changes):
        limit = 1 - turn % 2
        calls.append(timed(lambda limit=limit: admin.topics.policies.set(name, "max_producers", limit)))  # type: ignore[misc]
        reaches.append(timed(lambda limit=limit: _wait_until_heeded(broker, name, limit)))  # type: ignore[misc]
        floors.append(timed(lambda: ray.get(floor.nothing.remote())))
    producer.close()
    changed = [call + reach for call, reach in zip(calls, reaches, strict=True)]
    return [
        Row(
            "a policy of a running topic, from the call until it is heeded, worst",
            f"{max(changed) * 1000:,.0f} ms",
            "a second",
            max(changed) / MOST_S,
            1.0,
            at_most=True,
            note=f"of {changes} changes; p50 {p50(changed) * 1000:,.1f} ms",
        ),
        Row(
            "the call that changes it",
            f"{p50(calls) * 1000:,.1f} ms",
            f"empty Ray call {p50(floors) * 1000:,.2f} ms",
            p50(calls) / p50(floors),
            note="durable in the log of changes, then in the catalog, then at the partition",
        ),
        Row(
            "the first change of a namespace, which makes its log",
            f"{first * 1000:,.0f} ms",
            note="an actor starts",
        ),
    ]


def _wait_until_heeded(broker: Broker, name: str, limit: int) -> None:
    while True:
        try:
            broker.client.create_producer(name).close()
        except pulsar_ray.ProducerBusy:
            is_taken = False
        else:
            is_taken = True
        if is_taken == (limit == 0):
            return


def _publish(producer: pulsar_ray.Producer, messages: int) -> None:
    for _ in range(messages):
        producer.send_async(MESSAGE, None)
    producer.flush()


def _rates(broker: Broker, admin: pulsar_ray.Admin, seconds: int) -> list[Row]:
    name = broker.topic()
    producer = broker.client.create_producer(name, block_if_queue_full=True, max_pending_messages=100)
    broker.client.subscribe(name, "bench").close()
    producer.send(b"")
    admin.topics.policies.set(name, "publish_rate", publish_throttling_rate_in_msg=RATE)
    messages = RATE * (seconds + 1)
    took = timed(lambda: _publish(producer, messages))
    # A burst of one second is free.
    published = (messages - RATE) / took / RATE
    admin.topics.policies.remove(name, "publish_rate")
    admin.topics.policies.set(name, "subscription_dispatch_rate", dispatch_throttling_rate_in_msg=RATE)
    consumer = broker.client.subscribe(name, "bench")
    start = time.perf_counter()
    received = 0
    while received < messages:
        received += len(consumer.batch_receive())
    delivered = (messages - RATE) / (time.perf_counter() - start) / RATE
    consumer.close()
    producer.close()
    return [
        Row(
            f"{what} at a rate of {RATE:,}/s, over {seconds} s behind a burst",
            f"{ratio * RATE:,.0f}/s",
            f"{RATE:,}/s",
            ratio,
            MOST_OF_RATE,
            at_most=True,
        )
        for what, ratio in (("publish", published), ("deliver", delivered))
    ]


@ray.remote(num_cpus=0)
class _Floor:
    """An actor that does nothing."""

    def nothing(self) -> None:
        """Return at once."""
