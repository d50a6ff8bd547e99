"""Requests to all dispatchers of a consumer's subscription."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.consumer.start_position import StartPosition
from pulsar_ray.errors import (
    OperationNotSupported,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.transport.cluster import PartitionRoute


class SubscriptionControl:
    """Seeks, and asks what is stored, at the partitions that are not away.

    Each request has to be answered within `timeout_s`.
    """

    def __init__(self, core: ConsumerCore, timeout_s: float) -> None:
        self._core = core
        self._partitions = core.partitions
        self._timeout_s = timeout_s

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def has_message_available(self) -> bool:
        """Whether a stored message waits here, or will come, as `Consumer.has_message_available`."""
        self._core.check()
        if self._core.has_received():
            return True
        for partition in self._partitions.there():
            with self._unless_deleted():
                if self._has_more(partition):
                    return True
        return self._core.has_received()

    def _has_more(self, partition: PartitionConsumer) -> bool:
        if not partition.call("has_more", self._deadline(), **partition.has_more_arguments()):
            return False
        # The dispatcher delivers the batch that a start lies in, and does not know what is left out of it.
        deliveries = partition.deliveries
        return not (
            deliveries.skipped and deliveries.leaves_out(partition.call("last_message", self._deadline()))
        )

    def seek(self, messageid: MessageId | int) -> None:
        """Go on behind a message or at a publish time, as `Consumer.seek`."""
        partitions = self._seek_partitions(messageid)
        if partitions is self._partitions.all:
            self._partitions.check_all_there()
        is_inclusive = self._core.options.start_message_id_inclusive and messageid != MessageId.latest
        start = StartPosition.at(messageid, is_inclusive)
        for partition in partitions:
            with self._unless_deleted():
                partition.seek(start, self._deadline())

    def seek_last(self) -> None:
        """Go on at the newest stored message, or where none is stored at the next."""
        for partition, last in self._ask("last_message"):
            newest = _last_id(partition.route, last)
            if newest.entry_id() >= 0:
                with self._unless_deleted():
                    partition.seek(StartPosition.at(newest, inclusive=True), self._deadline())

    def last_message_ids(self) -> list[MessageId]:
        """The id of the newest message of each partition that is there."""
        answers = self._ask("last_message")
        return [_last_id(partition.route, last) for partition, last in answers]

    def check_unsubscribe(self) -> None:
        """Raise if another consumer is connected to the subscription."""
        self._ask("check_unsubscribe")

    def _ask(self, method: str) -> list[tuple[PartitionConsumer, Any]]:
        """The answers of partitions that are neither away nor being deleted."""
        answers = []
        for partition in self._partitions.there():
            with self._unless_deleted():
                answers.append((partition, partition.call(method, self._deadline())))
        return answers

    @contextlib.contextmanager
    def _unless_deleted(self) -> Iterator[None]:
        """Do without one of several topics if it is being deleted."""
        try:
            yield
        except (TopicNotFound, SubscriptionNotFound):
            if not self._core.is_multi_topic:
                raise

    def _seek_partitions(self, messageid: MessageId | int) -> list[PartitionConsumer]:
        if isinstance(messageid, bool) or not isinstance(messageid, (MessageId, int)):
            raise ValueError(
                f"seek takes a MessageId or a publish time in ms, not {type(messageid).__name__}"
            )
        if isinstance(messageid, int):
            if not 0 <= messageid < 2**63:
                raise ValueError(
                    f"seek({messageid}): a publish time is in ms since 1970, from 0; give that or a MessageId"
                )
            return self._partitions.all
        if messageid in (MessageId.earliest, MessageId.latest):
            return self._partitions.all
        messageid.check()
        partition = self._partitions.of(messageid.topic_name, messageid.partition())
        if not messageid.topic_name and self._partitions.single is None:
            self._check_names(partition, messageid)
        return [partition]

    def _check_names(self, partition: PartitionConsumer, messageid: MessageId) -> None:
        """Raise OperationNotSupported unless an id without a topic belongs to the partition.

        A ledger's id contains the number of its partition, which no other partition gets.
        """
        last = partition.call("last_message", self._deadline())
        if messageid.ledger_id() >> LEDGER_COUNTER_BITS != last["position"][0] >> LEDGER_COUNTER_BITS:
            raise OperationNotSupported(
                f"seek: the id {messageid} names no topic, and no ledger of {partition.route.topic}: use "
                "a received message's id, or MessageId.deserialize(..., topic=message.topic_name())"
            )


def _last_id(route: PartitionRoute, last: dict[str, Any]) -> MessageId:
    ledger_id, entry_id = last["position"]
    if ledger_id < 0 or entry_id < 0:
        return MessageId()
    size = last["batch_size"]
    row = last.get("batch_index", size - 1)
    return MessageId(route.partition, ledger_id, entry_id, row, batch_size=size, topic_name=route.topic)
