"""Reads beside the consumers of a real cluster: by a reader, in bulk, by Ray Data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import ray

import pulsar_ray.data
from pulsar_ray import Client
from pulsar_ray.errors import NotConnected
from pulsar_ray.transport.ray_cluster import RayCluster
from tests.faults.history.operations import ReadBegan, ReadEnded, ReadRow, digest_of, source_of
from tests.torture.clients import Working
from tests.torture.reads import COLUMNS, Reading
from tests.torture.scenes import Scene


class DatasetReading(Working):
    """Reads the topic as a Ray Dataset, whose tasks run in worker processes."""

    def __init__(self, name: str, scene: Scene, address: str, *arguments: Any) -> None:
        super().__init__(name, *arguments)
        self._scene = scene
        self._address = address

    def live(self, client: Client) -> None:
        client.get_topic_partitions(self._scene.topic)
        read = f"{self.name}-{self.lives}"
        self.note(ReadBegan(self.notes.topic, read))
        try:
            self._read(read)
        except ray.exceptions.RayError as error:
            # Ray Data gives up a task whose workers were killed too often.
            raise NotConnected(f"a dataset: {error}") from None
        self.note(ReadEnded(self.notes.topic, read))
        self.stopped.wait(self.rng.random() * 2)

    def _read(self, read: str) -> None:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        dataset = pulsar_ray.data.read(
            self._scene.topic, columns=(*COLUMNS, "partition"), service_url=self._address, num_cpus=0.5
        )
        for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in cast("pa.Table", batch).to_pylist():
                place = (row["partition"], row["ledger_id"], row["entry_id"], row["batch_index"])
                data = row["value"]
                self.note(ReadRow(self.notes.topic, read, place, *source_of(data), digest_of(data)))


class ReadingOnRay(Reading):
    """A reading whose process joins the cluster first: bulk reads ask it without a client."""

    def live(self, client: Client) -> None:
        client.get_topic_partitions(self.notes.topic)
        super().live(client)


def _reading(how: str) -> Callable[..., Working]:
    def made(name: str, scene: Scene, _address: str, *arguments: Any) -> Working:
        return ReadingOnRay(name, scene.partition_names, how, RayCluster(), *arguments)

    return made


READS: dict[str, Callable[..., Working]] = {
    "reader": _reading("reader"),
    "bulk": _reading("bulk"),
    "dataset": DatasetReading,
}
