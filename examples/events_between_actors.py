"""Ray actors exchange events through a topic, and one of them crashes.

    python examples/events_between_actors.py

Sensors publish readings, a monitor notes them. The monitor dies and starts again: the subscription knows what
it had acknowledged, so nothing is missing. Readings noted but not durably acknowledged come twice,
which is why the monitor goes by their own numbers.
"""

from __future__ import annotations

import os
from typing import Any

import ray

import pulsar_ray

SENSORS = 2
READINGS = 300
TOPIC = "readings"


@ray.remote(num_cpus=0)
class Sensor:
    """Publishes numbered readings under its name."""

    def __init__(self, client: pulsar_ray.Client, name: str) -> None:
        # A client passed to an actor connects there anew.
        self._name = name
        self._producer = client.create_producer(TOPIC, batching_enabled=True, block_if_queue_full=True)

    def measure(self, count: int) -> int:
        """Publish so many readings; returns when they are stored durably."""
        for number in range(count):
            self._producer.send_async(b"%d" % number, None, partition_key=self._name)
        self._producer.flush()
        return count


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Monitor:
    """Notes readings in a file, as a service would in its database."""

    def __init__(self, client: pulsar_ray.Client, path: str) -> None:
        self._path = path
        self._consumer = client.subscribe(TOPIC, "monitor")
        self._is_second_life = os.path.exists(path)

    def watch(self, total: int) -> int:
        """Receive until this many different readings are noted; returns how many came twice."""
        seen = self._noted()
        repeats = 0
        with open(self._path, "a") as notes:
            while len(seen) < total:
                message = self._consumer.receive()
                reading = (message.partition_key(), int(message.data()))
                repeats += reading in seen
                seen.add(reading)
                notes.write(f"{reading[0]} {reading[1]}\n")
                notes.flush()
                # First noted, then acknowledged: the other way round a crash in between would lose it.
                self._consumer.acknowledge(message)
                if len(seen) == total // 2 and not self._is_second_life:
                    os._exit(1)
        self._consumer.close()
        return repeats

    def _noted(self) -> set[tuple[str, int]]:
        if not self._is_second_life:
            return set()
        with open(self._path) as notes:
            return {(name, int(number)) for name, number in map(str.split, notes)}


def main() -> None:
    path = os.path.abspath(f"readings-{os.getpid()}.txt")
    with pulsar_ray.Client() as client:
        client.subscribe(TOPIC, "monitor").close()
        monitor: Any = Monitor.remote(client, path)
        sensors: list[Any] = [Sensor.remote(client, f"sensor-{number}") for number in range(SENSORS)]
        watching = monitor.watch.remote(SENSORS * READINGS)
        sent = sum(ray.get([sensor.measure.remote(READINGS) for sensor in sensors]))
        repeats = ray.get(watching)
        print(f"{sent} readings sent, all seen; the monitor died once, and saw {repeats} of them twice")
    os.remove(path)


if __name__ == "__main__":
    main()
