"""A consumer in a process of its own that fails some messages always, until it is killed.

`python -m tests.faults.failing_consumer ADDRESS TOPIC JOURNAL`; each message that it has consumed is a line
of the journal.
"""

from __future__ import annotations

import sys

import pulsar_ray

LIMIT = 3
SUBSCRIPTION = "sub"
POISON = 3
"""Every so many messages one cannot be consumed."""


def is_poison(data: bytes) -> bool:
    """Whether no consumer can cope with a message."""
    return int(data) % POISON == 0


def subscribe(client: pulsar_ray.Client, topic: str) -> pulsar_ray.Consumer:
    """A consumer whose failed messages come again at once, and are moved at the fourth failure."""
    return client.subscribe(
        topic,
        SUBSCRIPTION,
        pulsar_ray.ConsumerType.Shared,
        receiver_queue_size=20,
        negative_ack_redelivery_delay_ms=20,
        dead_letter_policy=pulsar_ray.ConsumerDeadLetterPolicy(LIMIT),
        initial_position=pulsar_ray.InitialPosition.Earliest,
    )


def main(address: str, topic: str, journal: str) -> None:
    consumer = subscribe(pulsar_ray.Client(address, operation_timeout_seconds=120), topic)
    with open(journal, "ab", buffering=0) as lines:
        while True:
            message = consumer.receive()
            if is_poison(message.data()):
                consumer.negative_acknowledge(message)
            else:
                lines.write(message.data() + b"\n")
                consumer.acknowledge(message)


if __name__ == "__main__":
    main(*sys.argv[1:])
