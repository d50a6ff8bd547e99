"""Deliveries whose ledger was deleted while they waited in the queue."""

from __future__ import annotations

import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.dead_letters.dead_letter_mover import DeadLetterMover
from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import Timeout
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.model.enums import ConsumerType, SubscriptionMode
from pulsar_ray.session.requests import Acknowledge, Deliver, DeliverChunks
from pulsar_ray.testing.waiting import wait_until
from tests.stored_blocks import IDENTITY, abandon, append, change, open_log
from tests.unit.client.consumer.delivering import EPOCH, DispatcherLink, core_of, open_partition

DELETED, KEPT = IDENTITY.number << 31, (IDENTITY.number << 31) + 1
MODES = (SubscriptionMode.Durable, SubscriptionMode.NonDurable)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a partition that has deleted its first ledger, and has two entries in the second."""
    for _ in range(2):
        log = open_log(tmp_path)
        append(log, log.epoch)
        append(log, log.epoch + 1)
        abandon(log)
    log = open_log(tmp_path)
    hold = change(log, log.changes.register("s", True, "earliest"))
    change(log, log.changes.move_hold(hold.number, log.changes.clamp(log.last_position)._replace(entry_id=0)))
    assert change(log, log.changes.trim(10**9)) == [DELETED]
    abandon(log)
    return tmp_path


def consumer(
    directory: Path | None, **options: Any
) -> tuple[ConsumerCore, PartitionConsumer, DispatcherLink]:
    core = core_of(receiver_queue_size=4, ack_grouping_time_ms=0, **options)
    partition, link = open_partition(core)
    if directory is not None:
        link.attached = dataclasses.replace(link.attached, directory=str(directory))
        partition.deliveries.look_at_files(link.attached)
        partition.deliveries.files.are_readable = True
    return core, partition, link


def place(partition: PartitionConsumer, number: int, ledger_id: int, entry: int = 0, **fields: int) -> None:
    """Deliver the place of one message."""
    length, count = fields.get("length", 100), fields.get("count", 0)
    grant: Any = (ledger_id, 0, 4096, length, entry, 1, ((0, 1),), count, 1)
    request = Deliver(partition.consumer_id, EPOCH, 0, [(number, grant)])
    partition.session.on_request(request, memoryview(b""))


def receive(core: ConsumerCore) -> Any:
    return core.receive(time.monotonic() + 0.05)


@pytest.mark.parametrize("mode", MODES)
def test_they_are_passed_over_and_their_permits_come_back(directory: Path, mode: SubscriptionMode) -> None:
    core, partition, link = consumer(directory, subscription_mode=mode)
    for number in range(1, 5):
        place(partition, number, DELETED, number)
    with pytest.raises(Timeout):
        receive(core)
    assert link.credits[-1] == 8
    assert partition.ack_sender.unacked.declared() == ([], []), "nothing of them is held"


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_the_partition_did_not_delete_is_missed(directory: Path, mode: SubscriptionMode) -> None:
    (directory / segment_name(KEPT, 0)).unlink()
    core, partition, _ = consumer(directory, subscription_mode=mode)
    place(partition, 1, KEPT)
    with pytest.raises(SegmentGone):
        receive(core)
    assert partition.ack_sender.unacked.declared() != ([], [])
    place(partition, 2, DELETED)
    with pytest.raises(Timeout):
        receive(core)


def test_who_is_sent_bytes_believes_the_dispatcher_alone(directory: Path) -> None:
    core, partition, link = consumer(None)
    # Of another node: there is a directory of this name here, which says nothing of that one.
    link.attached = dataclasses.replace(link.attached, directory=str(directory))
    partition.deliveries.look_at_files(link.attached)
    place(partition, 1, DELETED)
    with pytest.raises(SegmentGone):
        receive(core)
    place(partition, 2, DELETED, length=0)
    with pytest.raises(Timeout):
        receive(core)


def test_nothing_of_them_counts_as_received(directory: Path) -> None:
    core, partition, _ = consumer(directory)
    place(partition, 1, DELETED)
    place(partition, 2, DELETED, length=0)
    assert not core.has_received()
    place(partition, 3, KEPT)
    assert core.has_received()


def test_a_message_whose_first_chunks_are_deleted_is_acknowledged(directory: Path) -> None:
    core, partition, link = consumer(directory)
    chunk = (DELETED, 0, 4096, 100, 1)
    chunks = DeliverChunks(partition.consumer_id, EPOCH, 0, 1, 0, [chunk])
    partition.session.on_request(chunks, memoryview(b""))
    place(partition, 1, KEPT, 0)
    with pytest.raises(Timeout):
        receive(core)
    partition.ack_sender.flush()
    (ack,) = [request for request, _ in link.asked if isinstance(request, Acknowledge)]
    assert list(ack.ranges) == [(KEPT, 0, 0)]


def test_they_are_not_moved_as_dead_letters(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    core, partition, link = consumer(
        directory, consumer_type=ConsumerType.Shared, dead_letter_policy=ConsumerDeadLetterPolicy(2)
    )
    producers: Any = type("Producers", (), {"close": lambda _: None})()
    mover = DeadLetterMover(core, LetterTopics(core.options), producers)
    with caplog.at_level(logging.WARNING):
        for number in range(1, 5):
            place(partition, number, DELETED, number, count=3)
        wait_until(lambda: link.credits[-1] == 8, what="their permits are back")
    assert caplog.records == []
    mover.close(time.monotonic() + 10)
