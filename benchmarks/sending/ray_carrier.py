"""The carrier that always works: a sync send through Ray calls, against one call and one durable append."""

from __future__ import annotations

import gc

import ray

import pulsar_ray
from benchmarks.measuring.environment import Environment
from benchmarks.measuring.floors import DurableFile, empty_actor, exchanging_actor
from benchmarks.measuring.measure import alternate, p50, us
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 1024
PACKET = b"p" * 1250


def run(env: Environment) -> list[Row]:
    """Ours, the empty call and the append take turns."""
    with env.broker() as broker, pulsar_ray.Client(transport="ray") as client:
        topic = broker.topic()
        producer = client.create_producer(topic)
        lane = broker.client.create_producer(topic)
        actor, exchanging = empty_actor(), exchanging_actor()
        file = DurableFile(broker.directory / "floor")
        block = b"f" * 4096

        def publish_and_receive() -> None:
            producer.send_async(MESSAGE, None)
            consumer.acknowledge(consumer.receive())

        gc.collect()
        times = alternate(
            {
                "ours": lambda: producer.send(MESSAGE),
                "call": lambda: ray.get(actor.nothing.remote()),
                "exchange": lambda: ray.get(exchanging.exchange.remote(PACKET)),
                "append": lambda: file.append(block),
                "lane": lambda: lane.send(MESSAGE),
            },
            env.count(500, 50),
            warm_up=20,
        )
        consumer = client.subscribe(topic, "bench")
        received = alternate(
            {"ours": publish_and_receive, "call": lambda: ray.get(actor.nothing.remote())}, env.count(200, 20)
        )
        file.close()
        floor = p50(times["call"]) + p50(times["append"])
        exchange = p50(times["exchange"]) + p50(times["append"])
        return [
            Row(
                "sync send p50 over the Ray carrier",
                us(p50(times["ours"])),
                f"empty Ray call + append + fdatasync {us(floor)}",
                p50(times["ours"]) / floor,
                1.3,
                at_most=True,
                note=f"over the lane {us(p50(times['lane']))}",
            ),
            Row(
                "the same against Ray's own share",
                us(p50(times["ours"])),
                f"bare async call with a packet + append + fdatasync {us(exchange)}",
                p50(times["ours"]) / exchange,
                note=f"that call is {p50(times['exchange']) / p50(times['call']):.2f} empty ones",
            ),
            Row(
                "publish to receive p50 over the Ray carrier",
                us(p50(received["ours"])),
                f"empty Ray call {us(p50(received['call']))}",
                p50(received["ours"]) / p50(received["call"]),
            ),
        ]
