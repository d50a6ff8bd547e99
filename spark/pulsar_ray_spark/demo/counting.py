"""Consumers in Ray actors, each with a partition and tallies of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import ray

from pulsar_ray.client.client import Client
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray_spark.demo.text import Tally

SUBSCRIPTION = "count"
CALL_TIMEOUT_S = 60.0


class PartitionCounter:
    """Consumes one partition, Exclusive by its own name, in a thread; its methods only look."""

    def __init__(self, topic: str, partition: int) -> None:
        self._label = f"{topic}-partition-{partition} -> {SUBSCRIPTION}"
        self._client = Client()
        self._consumer = self._client.subscribe(
            f"{topic}-partition-{partition}",
            SUBSCRIPTION,
            ConsumerType.Exclusive,
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=20_000,
        )
        self._tallies: dict[str, Tally] = {}
        self._lines = 0
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consume", daemon=True)

    def __repr__(self) -> str:
        return f"Counter({self._label})"

    def start(self) -> None:
        """Begin; what was published before comes as well."""
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set() or self._consumer.has_message_available():
                self._take_batch()
        except BaseException as error:  # noqa: BLE001 - `progress` raises it where somebody sees it
            self._error = error

    def _take_batch(self) -> None:
        messages = self._consumer.batch_receive()
        tallies = self._tallies
        for message in messages:
            key = message.partition_key()
            tally = tallies.get(key)
            if tally is None:
                tally = tallies[key] = Tally()
            tally.add(message.data())
        self._consumer.acknowledge(messages)
        self._lines += len(messages)

    def progress(self) -> int:
        """Lines counted so far. Raises what ended the consumer."""
        if self._error is not None:
            raise self._error
        return self._lines

    def finish(self) -> dict[str, Tally]:
        """Take what is still there, leave, and hand the tallies over."""
        self._stop.set()
        self._thread.join()
        self.progress()
        self._client.close()
        return self._tallies


class Counters:
    """One PartitionCounter per partition, in actors that end with this process."""

    def __init__(self, topic: str, partitions: int) -> None:
        remote: Any = ray.remote(PartitionCounter)
        options = {"num_cpus": 0, "max_concurrency": 2}
        self._actors = [remote.options(**options).remote(topic, index) for index in range(partitions)]
        ray.get([actor.start.remote() for actor in self._actors], timeout=CALL_TIMEOUT_S)

    def progress(self) -> int:
        """Lines counted so far by all."""
        return sum(ray.get([actor.progress.remote() for actor in self._actors], timeout=CALL_TIMEOUT_S))

    def finish(self) -> dict[str, Tally]:
        """The tallies of all consumers.

        A key is on one partition only, so each tally is whole.
        """
        found: Sequence[dict[str, Tally]] = ray.get(
            [actor.finish.remote() for actor in self._actors], timeout=CALL_TIMEOUT_S
        )
        merged: dict[str, Tally] = {}
        for tallies in found:
            for key, tally in tallies.items():
                # A key that turned up on two partitions must not pass for right.
                merged[key] = Tally(merged[key].lines + tally.lines) if key in merged else tally
        self.stop()
        return merged

    def stop(self) -> None:
        """End the actors."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
