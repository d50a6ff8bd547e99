"""How long one message takes on a non-persistent topic, beside a persistent one."""

from __future__ import annotations

import gc
from typing import Any

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import CpuMeter, alternate, p50, percentile, us
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 1024
SUBSCRIPTION = "bench"


def run(env: Environment) -> list[Row]:
    """Sync send, and publish to receive; both kinds of topic take turns."""
    rounds = env.count(1500, 100)
    with env.broker() as broker:
        stored = _Topic(broker, broker.topic())
        passing = _Topic(broker, broker.topic().replace("persistent://", "non-persistent://"))
        for _ in range(env.count(1200, 50)):
            # As long as it takes until a partition trusts a quick disk.
            for topic in (stored, passing):
                topic.send()
                topic.publish_and_receive()
        rows = [
            _row("sync send p50", passing.send, stored.send, passing.send_meter(), rounds),
            _row(
                "publish to receive p50",
                passing.publish_and_receive,
                stored.publish_and_receive,
                passing.meter(),
                rounds,
            ),
        ]
        stored.close()
        passing.close()
    return rows


class _Topic:
    def __init__(self, broker: Broker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._producer = broker.client.create_producer(topic)
        self._sender_only = f"{topic}-unread"
        self._sender = broker.client.create_producer(self._sender_only)
        self._consumer = broker.client.subscribe(topic, SUBSCRIPTION)

    def send(self) -> None:
        self._sender.send(MESSAGE)

    def publish_and_receive(self) -> None:
        self._producer.send_async(MESSAGE, None)
        self._consumer.acknowledge(self._consumer.receive())

    def send_meter(self) -> CpuMeter:
        return self._broker.meter(self._sender_only)

    def meter(self) -> CpuMeter:
        return self._broker.meter(self._topic, SUBSCRIPTION)

    def close(self) -> None:
        self._producer.close()
        self._sender.close()
        self._consumer.close()


def _row(what: str, passing: Any, stored: Any, meter: CpuMeter, rounds: int) -> Row:
    gc.collect()
    times = alternate({"passing": passing, "stored": stored}, rounds, warm_up=30)
    mine, other = p50(times["passing"]), p50(times["stored"])
    with meter.running():
        for _ in range(rounds):
            passing()
    return Row(
        what,
        us(mine),
        f"persistent {us(other)}",
        mine / other,
        cpu_us=meter.per_message(rounds),
        note=f"p99 {us(percentile(times['passing'], 99))}, persistent {us(percentile(times['stored'], 99))}",
    )
