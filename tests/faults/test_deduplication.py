"""Two producers send random windows again while the partition's process is killed: each is stored once."""

from __future__ import annotations

from random import Random

import pulsar_ray
from pulsar_ray.errors import Result
from tests.faults.reading import payloads, read_all
from tests.running_broker import Broker, partition_actor

ROUNDS = 12
DEADLINE_MS = 90_000


def test_windows_that_are_sent_again_are_stored_once_and_in_order(broker: Broker, topic: str) -> None:
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    rng = Random(seed)
    client = broker.client()
    with pulsar_ray.Admin() as admin:
        admin.topics.create_topic(topic)
        admin.topics.policies.set(topic, "deduplication", deduplication=True)
    sent = dict.fromkeys("ab", 0)
    for turn in range(ROUNDS):
        results: list[Result] = []
        producers = []
        for name in sent:
            producer = client.create_producer(
                topic,
                name,
                send_timeout_millis=DEADLINE_MS,
                block_if_queue_full=True,
                batching_enabled=rng.random() < 0.5,
                batching_max_messages=rng.choice((7, 1000)),
            )
            producers.append(producer)
            first = max(0, sent[name] - rng.randrange(200))
            sent[name] = max(sent[name], first + rng.randrange(300))
            for number in range(first, sent[name]):
                producer.send_async(
                    b"%s %d" % (name.encode(), number),
                    lambda result, _, results=results: results.append(result),  # type: ignore[misc]
                    sequence_id=number,
                )
        if turn % 2:
            broker.kill(partition_actor(topic))
        for producer in producers:
            producer.flush()
            producer.close()
        assert set(results) <= {Result.Ok}
    stored = [value.decode() for value in payloads(read_all(client, topic))]
    for name, count in sent.items():
        assert [value for value in stored if value.startswith(name)] == [f"{name} {n}" for n in range(count)]
