"""Get a topic ready for the batch of a query, and forget names afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.data.writing.publishers import Connection
from pulsar_ray.data.writing.publishing import NamedWrite, when_free
from pulsar_ray.data.writing.query_batch import Layout, QueryBatch, query_prefix
from pulsar_ray.data.writing.row_schema import RowSchema
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError
from pulsar_ray.model.enums import HashingScheme
from pulsar_ray.model.topic_name import TopicName


class WriteTarget:
    """A topic that batches of queries are written to."""

    def __init__(self, topic: str, client: Client, admin: Admin) -> None:
        self.name = TopicName.parse(topic)
        self._client = client
        self._admin = admin

    @classmethod
    @contextmanager
    def connected(cls, topic: str, connection: Connection) -> Iterator[WriteTarget]:
        """Connect for as long as the context is open."""
        TopicName.parse(topic)
        with (
            connection.open() as client,
            Admin(connection.service_url, data_dir=connection.data_dir) as admin,
        ):
            yield cls(topic, client, admin)

    def create(self) -> tuple[str, ...]:
        """List the topic's partitions. A topic that is not there is created."""
        return tuple(self._client.get_topic_partitions(self.name.full))

    def register(self, rows: RowSchema | None) -> None:
        """Have the topic take the schema of rows before any of them is sent.

        Raises IncompatibleSchema, with the reason.
        """
        if rows is not None:
            self._client.create_producer(self.name.full, schema=rows.schema()).close()

    @contextmanager
    def taken(self, query: str, rows: RowSchema | None = None) -> Iterator[None]:
        """Keep other runs of a query away until the context is left.

        Before anything of a batch is stored they could divide it otherwise, and it would be stored twice.
        Raises ProducerBusy if another run does not end within NAME_FREE_S.
        """
        first, name = self.create()[0], f"{query_prefix(query)}run"
        schema = BytesSchema() if rows is None else rows.schema()
        producer = when_free(lambda: self._client.create_producer(first, name, schema=schema))
        try:
            yield
        finally:
            producer.close()

    def begin(
        self,
        batch: QueryBatch,
        tasks: int,
        hashing_scheme: HashingScheme = HashingScheme.JavaStringHash,
    ) -> NamedWrite:
        """Turn deduplication on, and find how the batch is divided.

        The result also knows what of it is stored.

        Raises InvalidConfiguration for a topic that stores nothing, NotAllowedError where deduplication was
        switched off for the topic itself, or a later batch was begun.
        """
        if not self.name.is_persistent:
            raise InvalidConfiguration(
                f"{self.name.full} stores nothing, so that it cannot know what was written before: write "
                "without name and batch_id, or to a persistent topic"
            )
        partitions = self.create()
        self._deduplicate()
        known = self._admin.topics.producer_sequence_ids(self.name.full, query_prefix(batch.query))
        layout = batch.choose_layout(known, Layout(tasks, len(partitions), hashing_scheme))
        return NamedWrite(batch, layout, partitions[: layout.partitions], known)

    def end(self, named: NamedWrite) -> None:
        """Forget the names of layouts that this query has used before this batch."""
        for layout in named.batch.former_layouts(named.known, named.layout):
            self._admin.topics.forget_producers(self.name.full, named.batch.layout_prefix(layout))

    def forget(self, query: str) -> list[str]:
        """Forget all names of a query, and return them."""
        return self._admin.topics.forget_producers(self.name.full, query_prefix(query))

    def _deduplicate(self) -> None:
        policies, topic = self._admin.topics.policies, self.name.partitioned_full
        policy = policies.get(topic, "deduplication")
        if policy.value["deduplication"]:
            return
        if policy.sources["deduplication"] == "topic":
            raise NotAllowedError(
                f"deduplication is switched off for {topic}, and a write with a name rests on it: call "
                f"Admin().topics.policies.set({topic!r}, 'deduplication', True), or write without a name"
            )
        policies.set(topic, "deduplication", True)
