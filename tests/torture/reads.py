"""Reads beside the consumers: by readers that reconnect, and in bulk as Spark and Ray Data do it."""

from __future__ import annotations

from typing import Any

from pulsar_ray import Client, MessageId
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.reading.block_schema import BLOCK_COLUMNS
from pulsar_ray.data.reading.rows import message_batches
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.transport.cluster import Cluster
from tests.faults.history.operations import ReadBegan, ReadEnded, ReadRow, Stored, digest_of, source_of
from tests.faults.journal import id_of
from tests.torture.clients import Working

READ_MS = 12_000
COLUMNS = ("value", "ledger_id", "entry_id", "batch_index")
assert set(COLUMNS) <= set(BLOCK_COLUMNS)


class Reading(Working):
    """Reads all partitions from the start, again and again, each with a reader or all in bulk."""

    def __init__(self, name: str, partitions: list[str], how: str, cluster: Cluster, *arguments: Any) -> None:
        super().__init__(name, *arguments)
        self._partitions = partitions
        self._how = how
        self._cluster = cluster

    def live(self, client: Client) -> None:
        read = f"{self.name}-{self.lives}"
        self.note(ReadBegan(self.notes.topic, read))
        if self._how == "bulk":
            self._read_in_bulk(read)
        else:
            for partition in self._partitions:
                self._read(client, partition, read)
        self.note(ReadEnded(self.notes.topic, read))
        self.stopped.wait(self.rng.random() * 2)

    def _read(self, client: Client, partition: str, read: str) -> None:
        reader = client.create_reader(partition, MessageId.earliest, receiver_queue_size=50)
        while reader.has_message_available():
            message = reader.read_next(READ_MS)
            data = message.data()
            self.note(
                ReadRow(
                    self.notes.topic, read, id_of(message.message_id()), *source_of(data), digest_of(data)
                )
            )
        reader.close()

    def _read_in_bulk(self, read: str) -> None:
        with BrokerPlanner.on(self._cluster).plan([self.notes.topic], "earliest", "latest") as plan:
            for each in plan.ranges:
                for batch in message_batches(stored_rows(each), 0, columns=COLUMNS):
                    for row in batch.to_pylist():
                        place = (each.partition, row["ledger_id"], row["entry_id"], row["batch_index"])
                        data = row["value"]
                        self.note(ReadRow(self.notes.topic, read, place, *source_of(data), digest_of(data)))


def stored_of(client: Client, topic: str, partitions: list[str]) -> list[Stored]:
    """All messages of a topic in the order of its partitions' logs."""
    found: list[Stored] = []
    for partition in partitions:
        reader = client.create_reader(partition, MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(30_000)
            data = message.data()
            found.append(
                Stored(
                    topic,
                    id_of(message.message_id()),
                    *source_of(data),
                    message.partition_key(),
                    digest_of(data),
                    message.publish_timestamp(),
                )
            )
        reader.close()
    return found
