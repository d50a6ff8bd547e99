"""Workers share a topic in order, and one of them dies.

Another takes its partitions over.

    python examples/failover_consumers.py

On a Failover subscription each partition has one active consumer, so that what has the same key is handled in
order, by one worker at a time. The others stand by. When the active one dies, the next gets what was not
acknowledged, and everything that follows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import ray

import pulsar_ray

TOPIC = f"accounts-{uuid.uuid4().hex[:8]}"
"""Each run has one of its own: it counts all that is there."""
PARTITIONS = 4
ACCOUNTS = 20
BOOKINGS = 10
"""Of each account, before and after one of the workers dies."""


class Duties(pulsar_ray.ConsumerEventListener):
    """Which partitions a worker is the active consumer of."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()

    def became_active(self, consumer: Any, partition_id: int) -> None:
        self.partitions.add(partition_id)

    def became_inactive(self, consumer: Any, partition_id: int) -> None:
        self.partitions.discard(partition_id)


@ray.remote(num_cpus=0)
class Worker:
    """Notes bookings in the order in which it gets them."""

    def __init__(self, client: pulsar_ray.Client, name: str) -> None:
        self._booked: list[tuple[str, int]] = []
        self._duties = Duties()
        self._consumer = client.subscribe(
            TOPIC,
            "bookkeeping",
            pulsar_ray.ConsumerType.Failover,
            consumer_name=name,
            message_listener=self._book,
            consumer_event_listener=self._duties,
            # Acknowledgments that are durable at once: only what a dying worker had just noted comes again.
            ack_receipt_enabled=True,
        )

    def _book(self, consumer: pulsar_ray.Consumer, message: pulsar_ray.Message) -> None:
        self._booked.append((message.partition_key(), int(message.data())))
        consumer.acknowledge(message)

    def duties(self) -> list[int]:
        """The partitions it is active on."""
        return sorted(self._duties.partitions)

    def booked(self) -> list[tuple[str, int]]:
        """(account, number of the booking), in order."""
        return list(self._booked)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)


def send(producer: pulsar_ray.Producer, first: int) -> None:
    numbers = [number for number in range(first, first + BOOKINGS) for _ in range(ACCOUNTS)]
    accounts = [f"account-{index}" for index in range(ACCOUNTS)] * BOOKINGS
    producer.send_many([b"%d" % number for number in numbers], partition_keys=accounts)


def main() -> None:
    with pulsar_ray.Admin() as admin:
        admin.topics.create_partitioned_topic(TOPIC, PARTITIONS)
    with pulsar_ray.Client() as client:
        ada: Any = Worker.remote(client, "ada")
        bob: Any = Worker.remote(client, "bob")
        wait_until(lambda: ray.get([ada.duties.remote(), bob.duties.remote()]) == [[0, 2], [1, 3]])

        producer = client.create_producer(TOPIC)
        send(producer, 0)
        half = ACCOUNTS * BOOKINGS
        wait_until(lambda: sum(map(len, ray.get([ada.booked.remote(), bob.booked.remote()]))) == half)

        booked = ray.get(ada.booked.remote())
        ray.kill(ada)
        wait_until(lambda: ray.get(bob.duties.remote()) == list(range(PARTITIONS)))
        send(producer, BOOKINGS)
        wait_until(lambda: len({*booked, *ray.get(bob.booked.remote())}) == 2 * half)
        booked += [booking for booking in ray.get(bob.booked.remote()) if booking not in set(booked)]
        ray.kill(bob)
    for index in range(ACCOUNTS):
        numbers = [number for account, number in booked if account == f"account-{index}"]
        assert numbers == list(range(2 * BOOKINGS)), "each account's bookings come once and in order"
    print(f"{len(booked)} bookings, in order for each account; bob took over")


if __name__ == "__main__":
    main()
