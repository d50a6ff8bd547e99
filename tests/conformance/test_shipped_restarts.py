"""Processes that start again tell nobody of what is not in the object store yet, over every carrier."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.broker.catalog.decisions import Decisions
from pulsar_ray.errors import ProducerBusy, PulsarException, RemoteStoreUnavailable, Result, Timeout
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import dispatcher_name, partition_name
from tests.conformance.broker import EARLIEST, QUIET_MS, WAIT_MS, Broker

TOPIC = TopicName.parse("t").full


@pytest.fixture
def make_shipped(make_broker: Callable[..., Broker], tmp_path: Path) -> Callable[[str], Broker]:
    """Makes a broker whose one store ships into a directory."""

    def make(durability: str) -> Broker:
        broker = make_broker(remote_url=(tmp_path / "bucket").as_uri(), remote_durability=durability)
        broker.cluster.wait_shipping()
        return broker

    return make


@contextmanager
def bucket_away() -> Iterator[None]:
    def create(_: FileStore, key: str, body: bytes) -> bool:
        del body
        raise RemoteStoreUnavailable(f"{key}: the bucket is away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "create", create)
        yield


def test_a_partition_that_starts_again_confirms_and_shows_nothing_that_is_not_there(
    make_shipped: Callable[[str], Broker],
) -> None:
    broker = make_shipped("sync")
    producer = broker.client().create_producer(TOPIC)
    consumer = broker.client().subscribe(TOPIC, "audit", initial_position=EARLIEST)
    producer.send(b"before")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    results: list[Any] = []
    with bucket_away():
        ledger = broker.cluster.partition(TOPIC).server.ledger  # type: ignore[union-attr]
        before = ledger.last_position
        producer.send_async(b"later", lambda result, _: results.append(result))
        wait_until(lambda: ledger.last_position > before, what="the message is stored here")
        broker.cluster.kill(partition_name(TOPIC))
        assert broker.cluster.partition(TOPIC).server.ledger.last_position > before  # type: ignore[union-attr]
        with pytest.raises(Timeout):
            consumer.receive(20 * QUIET_MS)
        assert results == []
    wait_until(lambda: results == [Result.Ok], what="the receipt")
    assert consumer.receive(WAIT_MS).data() == b"later"


def test_a_dispatcher_that_starts_again_confirms_no_acknowledgment_that_is_not_there(
    make_shipped: Callable[[str], Broker],
) -> None:
    broker = make_shipped("sync")
    producer = broker.client().create_producer(TOPIC)
    consumer = broker.client().subscribe(TOPIC, "audit", initial_position=EARLIEST, ack_receipt_enabled=True)
    producer.send(b"first")
    message = consumer.receive(WAIT_MS)
    acknowledging = threading.Thread(target=consumer.acknowledge, args=(message,), daemon=True)
    with bucket_away():
        acknowledging.start()
        wait_until(lambda: not sum(broker.unacked(TOPIC, "audit")), what="the acknowledgment is stored here")
        broker.cluster.kill(dispatcher_name(TOPIC, "audit", durable=True))
        broker.cluster.dispatcher_of(TOPIC, "audit")
        acknowledging.join(20 * QUIET_MS / 1000)
        assert acknowledging.is_alive()
    acknowledging.join(WAIT_MS / 1000)
    assert not acknowledging.is_alive()


def test_who_asks_how_far_a_producer_came_is_told_of_nothing_that_is_not_there(
    make_shipped: Callable[[str], Broker],
) -> None:
    broker = make_shipped("sync")
    broker.cluster.create_topic(TOPIC, 0)
    broker.admin().topics.policies.set(TOPIC, "deduplication", True)
    first = broker.client()
    producer = first.create_producer(TOPIC, "p")
    producer.send(b"before")
    told: dict[str, int] = {}

    def ask() -> None:
        call = broker.cluster.call(
            partition_name(TOPIC), "call", "producer_sequence_ids", {"prefix": ""}, timeout_s=60
        )
        told["asked"] = call["p"]

    def open_again() -> None:
        client = broker.client(operation_timeout_seconds=60)
        while "opened" not in told:
            with suppress(ProducerBusy):  # until the first one has left
                told["opened"] = client.create_producer(TOPIC, "p").last_sequence_id()

    threads = [threading.Thread(target=work, daemon=True) for work in (ask, open_again)]
    with bucket_away():
        ledger = broker.cluster.partition(TOPIC).server.ledger  # type: ignore[union-attr]
        before = ledger.last_position
        producer.send_async(b"later", lambda *_: None)
        wait_until(lambda: ledger.last_position > before, what="the message is stored here")
        first.shutdown()
        for thread in threads:
            thread.start()
        threads[0].join(20 * QUIET_MS / 1000)
        assert told == {}
    wait_until(lambda: len(told) == len(threads), timeout_s=60, what="both are told")
    assert told == {"asked": 1, "opened": 1}


def test_async_goes_on_behind_a_restart_while_the_object_store_is_away(
    make_shipped: Callable[[str], Broker],
) -> None:
    broker = make_shipped("async")
    producer = broker.client().create_producer(TOPIC)
    consumer = broker.client().subscribe(TOPIC, "audit", initial_position=EARLIEST)
    with bucket_away():
        producer.send(b"before")
        broker.cluster.kill(partition_name(TOPIC))
        producer.send(b"behind")
        assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"before", b"behind"]


def test_a_controller_whose_start_failed_does_not_depose_the_one_that_began_behind_it(
    make_shipped: Callable[[str], Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = make_shipped("async")
    broker.cluster.kill_controller(begins=False)
    monkeypatch.setattr(Decisions.begin, "__defaults__", (0.1,))
    with bucket_away(), pytest.MonkeyPatch.context() as patch:

        async def find(_: Stores) -> None:
            """Find no store, as if none answered."""

        patch.setattr(Stores, "find", find)
        for _ in range(3):
            with broker.admin() as admin, pytest.raises(PulsarException, match="it did not answer"):
                admin.topics.create_partitioned_topic("while-away", 1)
    with broker.admin() as admin:
        admin.topics.create_partitioned_topic("behind", 1)
    deciding = [thread for thread in threading.enumerate() if thread.name == "decisions"]
    assert len(deciding) == 1, "each of the failed ones would decide in place of the next"
