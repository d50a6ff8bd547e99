"""Publishes again what an ended store had confirmed and not shipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from pulsar_ray.client.client import Client
from pulsar_ray.client.dead_letters.letters import LetterColumns, joined_columns, marked_columns
from pulsar_ray.client.dead_letters.sent_copies import send_copies
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.schemas.registration import Writer, schema_of_copies, writer_of
from pulsar_ray.errors import CryptoError, PulsarException
from pulsar_ray.format.delivery_times import delivery_times
from pulsar_ray.maintenance.salvage import Message, Unshipped, unshipped_messages
from pulsar_ray.model.topic_name import TopicName, is_system_topic

SALVAGED_MESSAGE_ID = "SALVAGED_MESSAGE_ID"
"""The property of a salvaged message: its former id, as ledger:entry:partition:batch."""
_AT_ONCE = 1000
_AT_ONCE_BYTES = 8 << 20


def may_be_published(found: Unshipped) -> bool:
    """Return whether a partition belongs to users, and not to the broker itself."""
    return bool(found.parts) and not is_system_topic(TopicName.parse(found.topic))


def publish_again(
    client: Client, found: Iterable[Unshipped], progress: Callable[[int], None] = lambda _: None
) -> dict[str, int]:
    """Publish messages to their topics, in order, and return how many went to each.

    Keys, ordering keys, properties, event times, delivery times and versions of schemas stay; the former id
    is in `SALVAGED_MESSAGE_ID`. All that is counted is durable. Raises what a producer raises, and at the end
    CryptoError if encrypted messages were left out; the error then says how many had gone. `progress` is
    called with counts of messages.
    """
    outbox = _Outbox(client, progress)
    try:
        for partition in filter(may_be_published, found):
            outbox.publish(partition)
        outbox.check_all_went()
    except PulsarException as error:
        went = ", ".join(f"{count} to {topic}" for topic, count in outbox.counts.items()) or "none"
        again = error.again()
        again.text = f"{error.text}; published before: {went}"
        raise again from error
    finally:
        outbox.close()
    return dict(outbox.counts)


class _Outbox:
    """Gathers messages of one topic and one version of its schema, and sends them together."""

    def __init__(self, client: Client, progress: Callable[[int], None]) -> None:
        self._client, self._progress = client, progress
        self._target: tuple[str, Writer] | None = None
        self._producer: Producer | None = None
        self._waiting: list[LetterColumns] = []
        self._rows = self._bytes = 0
        self.counts: Counter[str] = Counter()
        self._encrypted: Counter[str] = Counter()

    def publish(self, partition: Unshipped) -> None:
        """Send all that a partition has, durably."""
        topic = TopicName.parse(partition.topic).partitioned_full

        def left_out(messages: int) -> None:
            self._encrypted[topic] += messages
            self._progress(messages)

        for message in unshipped_messages(partition, left_out):
            self._add(topic, partition, message)
        self.flush()

    def check_all_went(self) -> None:
        """Raise CryptoError if messages were left out because they are encrypted."""
        if left := ", ".join(f"{count} of {topic}" for topic, count in self._encrypted.items() if count):
            raise CryptoError(
                f"encrypted messages were left out, since nothing is decrypted here: {left}; they stay in "
                "the directory, so keep it"
            )

    def _add(self, topic: str, partition: Unshipped, message: Message) -> None:
        block = ReceivedBlock(
            message.decoded,
            topic_name=partition.topic,
            partition=partition.partition,
            ledger_id=message.ledger_id,
            first_entry_id=message.entry_id,
        )
        self._turn_to(topic, writer_of(block))
        columns = marked_columns(block, range(block.message_count), SALVAGED_MESSAGE_ID)
        times = delivery_times(message.decoded.header)
        if times is None:
            self._waiting.append(columns)
            self._rows += block.message_count
            self._bytes += message.decoded.header.total_length
            if self._rows >= _AT_ONCE or self._bytes >= _AT_ONCE_BYTES:
                self.flush()
            return
        self.flush()
        assert self._producer is not None
        self._producer.send_many(
            columns.values,
            partition_keys=columns.keys,
            ordering_keys=columns.ordering_keys,
            properties=columns.properties,
            event_timestamps=columns.event_times,
            deliver_at=times if isinstance(times, int) else [at or None for at in times],
        )
        self._went(block.message_count)

    def _turn_to(self, topic: str, writer: Writer) -> None:
        if self._target == (topic, writer):
            return
        self.flush()
        self.close()
        self._producer = self._client.create_producer(
            topic,
            schema=schema_of_copies(writer),
            block_if_queue_full=True,
            batching_enabled=False,
            chunking_enabled=True,
        )
        self._target = topic, writer

    def flush(self) -> None:
        """Send what was gathered, and wait until it is durable."""
        waiting, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        if not waiting:
            return
        assert self._producer is not None
        sent = send_copies(self._producer, joined_columns(waiting))
        self._went(sent.end - len(sent.too_big))
        for error in (sent.error, *sent.too_big.values()):
            if error is not None:
                raise error

    def _went(self, count: int) -> None:
        assert self._target is not None
        self.counts[self._target[0]] += count
        self._progress(count)

    def close(self) -> None:
        """Close the producer; what is gathered was sent, or failed."""
        producer, self._producer, self._target = self._producer, None, None
        if producer is not None:
            producer.close()
