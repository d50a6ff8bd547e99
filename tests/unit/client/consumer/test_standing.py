"""Where nothing comes for a reason, whoever would wait is told once; the dispatcher is played here."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.received.batch_collector import BatchCollector
from pulsar_ray.client.received.waiting_receivers import FutureReceiver
from pulsar_ray.errors import CorruptData, JournalDamaged, PulsarException, RemoteStoreUnavailable, Timeout
from pulsar_ray.session.requests import Deliver, NotRead, Reset
from tests.unit.client.consumer.delivering import EPOCH, LEDGER, core_of, deliver, open_partition

AWAY = "RemoteStoreUnavailable", "the bucket is away"
WAIT_S = 20.0


@pytest.fixture
def core() -> ConsumerCore:
    return core_of()


@pytest.fixture
def partition(core: ConsumerCore) -> PartitionConsumer:
    return open_partition(core)[0]


def say(partition: PartitionConsumer, *error: Any, generation: int = 0, epoch: int = EPOCH) -> None:
    request = NotRead(partition.consumer_id, epoch, generation, *error)
    partition.session.on_request(request, memoryview(b""))


def take(core: ConsumerCore, most: int = 10, *, fills: bool = False) -> int:
    taken = BatchCollector(most, 1 << 20, fills=fills)
    core.take_into(taken, 0.0)
    return sum(len(rows) for _, rows in taken.parts)


def test_a_receive_that_would_wait_raises_it_once_and_the_next_one_waits(
    core: ConsumerCore, partition: PartitionConsumer
) -> None:
    say(partition, *AWAY)
    with pytest.raises(RemoteStoreUnavailable, match="the bucket is away") as raised:
        core.receive(0.0)
    assert type(pickle.loads(pickle.dumps(raised.value))) is RemoteStoreUnavailable
    with pytest.raises(Timeout):
        core.receive(0.0)
    deliver(partition, 1, b"a")
    assert core.receive(0.0).data() == b"a"


def test_what_is_here_comes_first(core: ConsumerCore, partition: PartitionConsumer) -> None:
    deliver(partition, 1, b"a", b"b")
    say(partition, *AWAY)
    assert [core.receive(0.0).data() for _ in range(2)] == [b"a", b"b"]
    with pytest.raises(RemoteStoreUnavailable):
        core.receive(0.0)


def test_a_thread_that_waits_is_woken(core: ConsumerCore, partition: PartitionConsumer) -> None:
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(core.wait(WAIT_S) and core.receive(0.0))
        except PulsarException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    say(partition, *AWAY)
    with pytest.raises(RemoteStoreUnavailable):
        result.result(WAIT_S)


def test_the_first_receiver_is_failed_and_the_next_one_waits(
    core: ConsumerCore, partition: PartitionConsumer
) -> None:
    receivers = [FutureReceiver(), FutureReceiver()]
    for receiver in receivers:
        core.add_receiver(receiver)
    say(partition, "JournalDamaged", "1-0 is gone")
    with pytest.raises(JournalDamaged):
        receivers[0].future.result(0)
    deliver(partition, 1, b"a")
    assert receivers[1].future.result(0).data() == b"a"


@pytest.mark.parametrize("fills", [False, True])
def test_a_batch_has_what_came_before_and_the_next_one_raises(
    core: ConsumerCore, partition: PartitionConsumer, fills: bool
) -> None:
    deliver(partition, 1, b"a")
    say(partition, *AWAY)
    assert take(core, fills=fills) == 1
    with pytest.raises(RemoteStoreUnavailable):
        take(core, fills=fills)
    assert take(core, fills=fills) == 0


def test_messages_before_one_that_cannot_be_fetched_are_not_lost_for_it(
    core: ConsumerCore, partition: PartitionConsumer
) -> None:
    decode, away = partition.deliveries.decode, [True]

    def fetched(delivery: Any) -> Any:
        if delivery.first_entry_id == 1 and away[0]:
            raise RemoteStoreUnavailable("the bucket is away")
        return decode(delivery)

    partition.deliveries.decode = fetched
    deliver(partition, 1, b"a")
    deliver(partition, 2, b"b")
    assert take(core) == 1
    for _ in range(2):
        with pytest.raises(RemoteStoreUnavailable):
            take(core)
    away[0] = False
    assert take(core) == 1


def test_it_holds_no_more_once_something_comes_or_reading_goes_on(
    core: ConsumerCore, partition: PartitionConsumer
) -> None:
    say(partition, *AWAY)
    deliver(partition, 1, b"a")
    assert core.receive(0.0).data() == b"a"
    for request in (NotRead(partition.consumer_id, EPOCH, 0), Reset(partition.consumer_id, 1, is_seek=True)):
        say(partition, *AWAY)
        partition.session.on_request(request, memoryview(b""))
        with pytest.raises(Timeout):
            core.receive(0.0)


def test_a_word_from_before_a_seek_or_of_a_former_dispatcher_is_not_heard(
    core: ConsumerCore, partition: PartitionConsumer
) -> None:
    partition.session.on_request(Reset(partition.consumer_id, 1, is_seek=True), memoryview(b""))
    say(partition, *AWAY)
    say(partition, *AWAY, generation=1, epoch=EPOCH - 1)
    with pytest.raises(Timeout):
        core.receive(0.0)


def test_a_delivery_without_bytes_raises_what_the_dispatcher_met(
    core: ConsumerCore, partition: PartitionConsumer
) -> None:
    say(partition, "CorruptData", "1-0.seg is cut off", {"path": "1-0.seg", "offset": 17}, 1)
    grant: Any = (LEDGER, 0, 0, 100, 0, 1, ((0, 1),), 0, 1)
    request = Deliver(partition.consumer_id, EPOCH, 0, [(1, grant)])
    partition.session.on_request(request, memoryview(b""))
    deliver(partition, 2, b"next")
    with pytest.raises(CorruptData) as raised:
        core.receive(0.0)
    assert (raised.value.offset, raised.value.message_id.entry_id()) == (17, 0)
    assert core.receive(0.0).data() == b"next"
