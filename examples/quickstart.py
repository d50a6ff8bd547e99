"""Publish a message, receive it, acknowledge it.

    python examples/quickstart.py

Works without any preparation: if no Ray runs on this machine, the first `Client()` starts an embedded broker
in the background, which ends by itself. Stored is in ~/.pulsar-ray, or where PULSAR_RAY_DATA_DIR says.
"""

from __future__ import annotations

import pulsar_ray


def main() -> None:
    with pulsar_ray.Client() as client:
        # A subscription keeps what comes after it was made, so it is made before anything is published.
        consumer = client.subscribe("quickstart", "reader")
        producer = client.create_producer("quickstart")

        message_id = producer.send(b"hello", partition_key="greetings", properties={"language": "en"})
        print(f"stored as {message_id}")

        message = consumer.receive(timeout_millis=30_000)
        print(f"received {message.data()!r} with key {message.partition_key()} and {message.properties()}")
        consumer.acknowledge(message)


if __name__ == "__main__":
    main()
