"""Waits for the receipt of one message."""

from __future__ import annotations

import time
from typing import Any

from pulsar_ray.client.producer.blocks.send_callbacks import ErrorCallback
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.model.message_id import MessageId


class SyncSend(ErrorCallback, Completion):
    """The callback of a message whose sender waits."""

    error: PulsarException | None = None
    message_id: MessageId | None = None

    def __call__(self, result: Any, message_id: MessageId) -> None:
        self.message_id = message_id
        self.set()

    def failed(self, error: PulsarException) -> None:
        self.error = error
        self.set()

    def wait_at(self, partition: PartitionProducer, value: bytes | None, timeout_s: float) -> MessageId:
        """Wait until the partition has stored the message, and return its id.

        Without a receipt in time the partition gives up all that is unconfirmed. A message in chunks has that
        time for each chunk. Raises Timeout, or the error that the message failed with.
        """
        while not partition.link.wait(self, time.monotonic() + timeout_s):
            if partition.queue.is_chunked(value) and not partition.queue.has_expired():
                continue  # a chunk was confirmed meanwhile
            partition.give_up()
            if not self.is_set():
                raise Timeout(
                    f"no receipt from {partition.link.where} within {timeout_s} s; whether the message was "
                    "stored is unknown"
                )
            break
        if self.error is not None:
            raise self.error.again()
        assert self.message_id is not None
        return self.message_id
