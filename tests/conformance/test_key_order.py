"""The order of keys over every carrier, whoever comes and goes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import AlreadyClosed, Timeout
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker
from tests.conformance.keyed import subscribe


class Log:
    """What consumers got, in the order they got it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.first_seen: dict[str, list[int]] = {key: [] for key in KEYS}
        self.seen: set[int] = set()

    def got(self, message: Message) -> None:
        number = int(message.data())
        with self._lock:
            if number not in self.seen:
                self.seen.add(number)
                self.first_seen[message.partition_key()].append(number)


KEYS = [f"key-{number}" for number in range(12)]


def work(consumer: Consumer, log: Log, seed: int) -> None:
    """Receive, hold some for a while, acknowledge, until the consumer is closed."""
    rng = random.Random(seed)
    held: list[Message] = []
    try:
        while True:
            try:
                message = consumer.receive(50)
            except Timeout:
                pass
            else:
                log.got(message)
                held.append(message)
            if len(held) > rng.randrange(6):
                consumer.acknowledge(held.pop(0))
            elif rng.random() < 0.3:
                while held:
                    consumer.acknowledge(held.pop(0))
    except AlreadyClosed:
        pass


def test_the_order_of_keys_survives_joining_leaving_and_dying_at_random(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(session_lease_seconds=3)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    topic, log, total = broker.topic(), Log(), 1200
    producer = broker.client().create_producer(topic, block_if_queue_full=True)
    workers: list[tuple[Client, Consumer, threading.Thread]] = []
    threads: list[threading.Thread] = []

    def join() -> None:
        client = broker.client()
        consumer = subscribe(client, topic, f"c{len(threads)}", receiver_queue_size=rng.choice([1, 10, 1000]))
        thread = threading.Thread(target=work, args=(consumer, log, rng.randrange(1 << 32)))
        thread.start()
        threads.append(thread)
        workers.append((client, consumer, thread))

    join()
    for number in range(total):
        producer.send_async(b"%d" % number, None, partition_key=rng.choice(KEYS))
        if number % 60 == 59:
            producer.flush()
            if len(workers) < 2 or (len(workers) < 5 and rng.random() < 0.6):
                join()
            else:
                client, consumer, _ = workers.pop(rng.randrange(len(workers)))
                consumer.close() if rng.random() < 0.5 else client.shutdown()
    producer.flush()
    wait_until(lambda: len(log.seen) == total, timeout_s=60)
    for _, consumer, _ in workers:
        consumer.close()
    for thread in threads:
        thread.join(30)
    assert sorted(log.seen) == list(range(total))
    for key, numbers in log.first_seen.items():
        assert numbers == sorted(numbers), f"key {key} came out of order, seed {seed}"
