"""Waiting for one receipt."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.send_callbacks import SyncSend
from pulsar_ray.errors import DiskSpaceLow, Timeout
from pulsar_ray.model.message_id import MessageId

STORED = MessageId(0, 1, 2)


class Partition:
    """The link, the queue and the partition of one producer; `outcomes` come one at each wait."""

    def __init__(self, *outcomes: Any, is_chunked: bool = False, expires_at: int = 0) -> None:
        self.outcomes = list(outcomes)
        self.link = self.queue = self.state = self.limits = self
        self.where = "a partition on a host"
        self.is_cut = is_chunked
        self.expires_at = expires_at
        self.waits = 0
        self.given_up = 0

    def wait(self, sent: SyncSend, _deadline: float) -> bool:
        self.waits += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, MessageId):
            sent(None, outcome)
        elif outcome is not None:
            sent.failed(outcome)
        return sent.is_set()

    def is_chunked(self, _value: bytes | None) -> bool:
        return self.is_cut

    def has_expired(self) -> bool:
        return self.waits > self.expires_at

    def give_up(self) -> None:
        self.given_up += 1

    def send(self) -> MessageId:
        return PartitionProducer.await_receipt(cast("PartitionProducer", self), SyncSend(), b"x", 30.0)


def test_the_receipt_has_the_id() -> None:
    assert Partition(STORED).send() == STORED


def test_a_message_that_failed_raises_its_error() -> None:
    with pytest.raises(DiskSpaceLow):
        Partition(DiskSpaceLow("full")).send()


def test_without_a_receipt_in_time_the_producer_gives_up() -> None:
    partition = Partition(None)
    with pytest.raises(Timeout, match="unknown"):
        partition.send()
    assert partition.given_up == 1


def test_chunks_that_are_confirmed_meanwhile_are_waited_for() -> None:
    partition = Partition(None, None, STORED, is_chunked=True, expires_at=2)
    assert partition.send() == STORED
    partition = Partition(None, None, is_chunked=True, expires_at=1)
    with pytest.raises(Timeout):
        partition.send()
    assert partition.given_up == 1
