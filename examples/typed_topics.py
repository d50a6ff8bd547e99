"""Send dataclasses, let their class grow, and read old and new messages as either.

    python examples/typed_topics.py

Works without any preparation: if no Ray runs on this machine, the first `Client()` starts an embedded broker
in the background, which ends by itself. Stored is in ~/.pulsar-ray, or where PULSAR_RAY_DATA_DIR says.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulsar_ray
from pulsar_ray.schema import AutoSchema

TOPIC = "typed-readings"


@dataclass
class Reading:
    sensor: str
    celsius: float = 0.0


@dataclass
class PlacedReading:
    """Reading, some weeks later: fields with defaults can be added and removed."""

    sensor: str
    celsius: float = 0.0
    place: str | None = None


@dataclass
class WrongReading:
    sensor: str
    celsius: str = "0"


def main() -> None:
    with pulsar_ray.Client() as client:
        # Subscriptions keep what comes after they were made.
        old = client.subscribe(TOPIC, "old-program", schema=Reading)
        new = client.subscribe(TOPIC, "new-program", schema=PlacedReading)
        any_class = client.subscribe(TOPIC, "no-class", schema=AutoSchema())

        client.create_producer(TOPIC, schema=Reading).send(Reading("roof", 21.5))
        client.create_producer(TOPIC, schema=PlacedReading).send(PlacedReading("door", 19.0, place="south"))

        for consumer in (old, new, any_class):
            for _ in range(2):
                message = consumer.receive(timeout_millis=30_000)
                print(f"{consumer.subscription_name()}: {message.value()}")
                consumer.acknowledge(message)

        try:
            client.create_producer(TOPIC, schema=WrongReading)
        except pulsar_ray.exceptions.IncompatibleSchema as refused:
            print(refused)
            print("a field of another type was refused; 2 versions were read by 3 programs")


if __name__ == "__main__":
    main()
