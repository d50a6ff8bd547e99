"""Messages that are only in the object store come as any others, and wait while it is away."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_ray.broker.partition import topic_offload
from pulsar_ray.broker.subscription.consumers import standing_notice
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerBatchReceivePolicy
from pulsar_ray.errors import JournalDamaged, NotAllowedError, RemoteStoreUnavailable
from pulsar_ray.journal.life import uploads
from pulsar_ray.journal.offloaded import resting_offers
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.ledger import offloaded
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker
from tests.conformance.event_loop import on_a_loop

COUNT, SIZE = 80, 10_000
SMALL = {"segment_size_bytes": 64 * 1024, "index_checkpoint_bytes": 64 * 1024}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PIECE_BYTES", 16 * 1024)
    monkeypatch.setattr(offloaded.READING, "wait_s", 0.3)
    monkeypatch.setattr(standing_notice, "AWAY_S", 1.0)


@pytest.fixture
def make_shipped(make_broker: Callable[..., Broker], tmp_path: Path) -> Callable[..., Broker]:
    """Makes a broker whose one store ships into a directory."""

    def make(**settings: Any) -> Broker:
        broker = make_broker(remote_url=(tmp_path / "bucket").as_uri(), **SMALL, **settings)
        broker.cluster.wait_shipping()
        return broker

    return make


@contextmanager
def bucket_away() -> Iterator[None]:
    real = FileStore.get

    def get(store: FileStore, key: str) -> bytes | None:
        if key.startswith("segments/"):
            raise RemoteStoreUnavailable("the bucket is away")
        return real(store, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStore, "get", get)
        yield


def published(broker: Broker, topic: str, client: Client | None = None) -> list[MessageId]:
    producer = (client or broker.client()).create_producer(
        topic, batching_enabled=False, block_if_queue_full=True
    )
    ids: list[MessageId] = []
    for number in range(COUNT):
        producer.send_async(payload(number), lambda _, sent: ids.append(sent))
        if number % 5 == 4:
            producer.flush()  # else all would be one frame, and one segment
    return ids


def payload(number: int) -> bytes:
    return (b"%d " % number * SIZE)[:SIZE]


def offload(broker: Broker, topic: str) -> dict[str, Any]:
    topics = broker.admin().topics
    topics.offload(topic)
    wait_until(lambda: topics.offload_status(topic)["status"] != "RUNNING")
    status = topics.offload_status(topic)
    # A partition that has slept since does not know of it any more.
    assert status["status"] in ("SUCCESS", "NOT_RUN")
    assert (status["last_error"], status["offloaded_segments"] >= 8) == ("", True)
    return status


def test_offloaded_messages_come_as_any_others(make_shipped: Callable[..., Broker]) -> None:
    broker = make_shipped()
    early = broker.client().subscribe("t", "early", initial_position=EARLIEST)
    shared = broker.client().subscribe("t", "shared", ConsumerType.KeyShared, initial_position=EARLIEST)
    ids = published(broker, "t")
    status = offload(broker, "t")
    assert status["offloaded_bytes"] > status["local_bytes"] > 0
    assert broker.admin().topics.stats("t")["offloadedStorageSize"] == status["offloaded_bytes"]
    for consumer in (early, shared):
        for number in range(COUNT):
            message = consumer.receive(WAIT_MS)
            assert message.data() == payload(number)
            consumer.acknowledge(message)
    early.seek(ids[3])
    assert early.receive(WAIT_MS).data() in {payload(3), payload(4)}
    reader = broker.client().create_reader("t", MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(COUNT)] == [payload(n) for n in range(COUNT)]
    [peeked] = broker.admin().topics.peek_messages("t", "early", 1)
    assert peeked.data() in {payload(3), payload(4)}
    assert early.receive(WAIT_MS).data() in {payload(4), payload(5)}


def test_who_receives_while_segments_go_and_come_back_gets_each_message_once(
    make_shipped: Callable[..., Broker],
) -> None:
    broker = make_shipped()
    consumer = broker.client().subscribe("t", "early", receiver_queue_size=1, initial_position=EARLIEST)
    published(broker, "t")
    topics = broker.admin().topics
    got = [consumer.receive(WAIT_MS).data() for _ in range(COUNT // 4)]
    offload(broker, "t")
    got += [consumer.receive(WAIT_MS).data() for _ in range(COUNT // 4)]
    topics.fetch_back("t")
    while topics.offload_status("t")["offloaded_segments"] and len(got) < COUNT:
        got.append(consumer.receive(WAIT_MS).data())
    got += [consumer.receive(WAIT_MS).data() for _ in range(COUNT - len(got))]
    assert got == [payload(number) for number in range(COUNT)]


def test_while_the_bucket_is_away_only_those_wait_who_need_it(make_shipped: Callable[..., Broker]) -> None:
    broker = make_shipped()
    broker.client().subscribe("t", "cold", initial_position=EARLIEST).close()
    published(broker, "t")
    offload(broker, "t")
    with bucket_away():
        cold = broker.client().subscribe("t", "cold")
        hot = broker.client().subscribe("t", "hot")
        producer = broker.client().create_producer("t")
        producer.send(b"now")
        assert hot.receive(WAIT_MS).data() == b"now"
        # The consumer may need it first, or the broker for it.
        with pytest.raises(RemoteStoreUnavailable):
            cold.receive(WAIT_MS)
        producer.send(b"more")
        assert hot.receive(WAIT_MS).data() == b"more"
    assert [patiently(cold) for _ in range(COUNT)] == [payload(n) for n in range(COUNT)]


def patiently(consumer: Consumer) -> bytes:
    """Receive again for as long as what comes next is not here."""

    def received() -> list[bytes]:
        try:
            return [consumer.receive(WAIT_MS).data()]
        except RemoteStoreUnavailable:
            return []

    return wait_until(received)[0]


def test_a_threshold_offloads_by_itself_and_retention_deletes_there(
    make_shipped: Callable[..., Broker], tmp_path: Path
) -> None:
    broker = make_shipped(managed_ledger_offload_threshold_in_bytes=0)
    consumer = broker.client().subscribe("t", "s", initial_position=EARLIEST)
    published(broker, "t")
    topics = broker.admin().topics
    wait_until(lambda: topics.offload_status("t")["offloaded_segments"] >= 8, timeout_s=40)
    for _ in range(COUNT):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    topics.truncate("t")
    wait_until(lambda: topics.offload_status("t")["offloaded_segments"] == 0)
    wait_until(lambda: not [p for p in (tmp_path / "bucket" / "segments").rglob("*.seg/*") if p.is_file()])


class HalfOfADisk:
    """A disk of twice the bytes that segments may have; none are too many at first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.bound = 1 << 40

    def used(self) -> int:
        found = 0
        for path in self._directory.glob("p/*/*.seg"):
            with suppress(FileNotFoundError):
                found += path.stat().st_size
        return found

    def disk_usage(self, _directory: Path) -> Any:
        return SimpleNamespace(total=2 * self.bound, free=2 * self.bound - self.used())


@pytest.fixture
def full_at_half(
    make_shipped: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> tuple[Broker, HalfOfADisk]:
    """A broker that leaves segments to the object store beyond half of its disk, and that disk."""
    for module in (topic_offload, resting_offers):
        monkeypatch.setattr(module, "LOOK_S", 0.2)
    monkeypatch.setattr(resting_offers, "READ_ANYWAY_S", 1.0)
    broker = make_shipped(offload_disk_percent=50)
    disk = HalfOfADisk(broker._directory)
    for module in (topic_offload, resting_offers):
        monkeypatch.setattr(module, "shutil", disk)
    return broker, disk


def test_a_full_disk_is_freed_of_the_oldest_segments_of_all_topics_and_of_no_more(
    full_at_half: tuple[Broker, HalfOfADisk],
) -> None:
    broker, disk = full_at_half
    topics = broker.admin().topics
    for topic in ("older", "younger"):
        broker.client().subscribe(topic, "s", initial_position=EARLIEST).close()
        published(broker, topic)
    freed = 300_000
    disk.bound = disk.used() - freed
    wait_until(
        lambda: (
            topics.offload_status("older") and topics.offload_status("younger") and disk.used() < disk.bound
        )
    )
    for topic in ("older", "younger"):
        consumer = broker.client().subscribe(topic, "s")
        assert [consumer.receive(WAIT_MS).data() for _ in range(COUNT)] == [payload(n) for n in range(COUNT)]
    assert topics.offload_status("older")["offloaded_bytes"] < freed + 128 * 1024
    assert topics.offload_status("younger")["offloaded_bytes"] == 0


def asleep(broker: Broker, topic: str) -> bool:
    return broker.cluster.put_to_sleep(topic) or topic not in broker.cluster.addresses


def test_partitions_that_sleep_leave_a_full_disk_and_are_not_woken(
    full_at_half: tuple[Broker, HalfOfADisk],
) -> None:
    broker, disk = full_at_half
    names = ("older", "younger")
    for topic in names:
        client = broker.client()
        client.subscribe(topic, "s", initial_position=EARLIEST).close()
        published(broker, topic, client)
        client.close()
    sleeping = [f"persistent://public/default/{topic}" for topic in names]
    for topic in sleeping:
        wait_until(lambda topic=topic: asleep(broker, topic), what="its sleep")  # type: ignore[misc]
    freed = 300_000
    disk.bound = disk.used() - freed
    wait_until(lambda: disk.used() < disk.bound)
    assert not set(broker.cluster.addresses).intersection(sleeping)
    # Going on a little is a race with the look that follows; not half of it.
    assert disk.used() > disk.bound - freed // 2
    topics = broker.admin().topics
    assert topics.offload_status("older")["offloaded_bytes"] > 0
    for topic in names:
        consumer = broker.client().subscribe(topic, "s")
        assert [consumer.receive(WAIT_MS).data() for _ in range(COUNT)] == [payload(n) for n in range(COUNT)]
    assert topics.offload_status("younger")["offloaded_bytes"] == 0


def test_a_topic_leaves_the_object_store_once_all_of_it_is_back(
    make_shipped: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_offload, "LOOK_S", 0.2)
    broker = make_shipped()
    broker.client().subscribe("t", "s", initial_position=EARLIEST).close()
    published(broker, "t")
    offload(broker, "t")
    topics = broker.admin().topics
    topics.fetch_back("t")
    wait_until(lambda: topics.offload_status("t")["status"] != "RUNNING")
    assert topics.offload_status("t")["offloaded_segments"] == 0
    offload(broker, "t")
    topics.policies.set("t", "remote_durability", "off")
    wait_until(lambda: topics.offload_status("t")["offloaded_segments"] == 0)
    # Of the topic's number 1; policies are written to a log that is shipped yet.
    wait_until(lambda: not [p for p in (tmp_path / "bucket" / "segments" / "1").rglob("*") if p.is_file()])
    with bucket_away():
        consumer = broker.client().subscribe("t", "s")
        assert [consumer.receive(WAIT_MS).data() for _ in range(COUNT)] == [payload(n) for n in range(COUNT)]


def test_nothing_is_offloaded_before_the_earliest_message(make_shipped: Callable[..., Broker]) -> None:
    broker = make_shipped()
    ids = published(broker, "t")
    topics = broker.admin().topics

    def offloaded(before: MessageId) -> int:
        topics.offload("t", before)
        wait_until(lambda: topics.offload_status("t")["status"] != "RUNNING")
        return int(topics.offload_status("t")["offloaded_segments"])

    assert offloaded(MessageId.earliest) == 0
    some = offloaded(ids[COUNT // 2])
    assert 0 < some < offloaded(MessageId.latest)


def test_what_is_not_shipped_is_not_offloaded(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker()
    published(broker, "t")
    with pytest.raises(NotAllowedError, match="start the broker with --remote"):
        broker.admin().topics.offload("t")
    assert broker.admin().topics.offload_status("t")["status"] == "NOT_RUN"


@on_a_loop
async def test_whoever_waits_is_told_in_every_form(make_shipped: Callable[..., Broker]) -> None:
    def prepared() -> Broker:
        broker = make_shipped()
        for name in ("one", "many", "shared"):
            broker.client().subscribe("t", name, initial_position=EARLIEST).close()
        published(broker, "t")
        offload(broker, "t")
        return broker

    broker = await asyncio.to_thread(prepared)
    with bucket_away():
        async with broker.asyncio_client() as client:
            one = await client.subscribe("t", "one")
            many = await client.subscribe("t", "many")
            all_that_come = ConsumerBatchReceivePolicy(COUNT, -1, -1)
            shared = await client.subscribe(
                "t", "shared", ConsumerType.Shared, batch_receive_policy=all_that_come
            )
            reader = await client.create_reader("t", MessageId.earliest)
            waiting = [one.receive(), many.receive_arrow(), shared.batch_receive(), reader.read_next()]
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(each) for each in ended] == [RemoteStoreUnavailable] * 4
        listened: Future[bytes] = Future()
        client_of_one = broker.client()
        await asyncio.to_thread(
            lambda: client_of_one.subscribe(
                "t", "one", message_listener=lambda _, message: listened.set_result(message.data())
            )
        )
    # A listener goes on by itself.
    assert await asyncio.to_thread(listened.result, WAIT_MS / 1000) == payload(0)


def receive_all(consumer: Consumer, got: list[bytes]) -> None:
    while True:
        got.append(consumer.receive(WAIT_MS).data())


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_an_object_that_is_gone_or_damaged_is_named_and_passed_only_when_told(
    make_shipped: Callable[..., Broker], tmp_path: Path, fault: str
) -> None:
    broker = make_shipped()
    for name in ("stands", "waits"):
        broker.client().subscribe("t", name, initial_position=EARLIEST).close()
    ids = published(broker, "t")
    offload(broker, "t")
    pieces = sorted((tmp_path / "bucket" / "segments" / "1").glob("*.seg/*"))
    piece = pieces[len(pieces) // 2]
    stored = piece.read_bytes()
    if fault == "gone":
        piece.unlink()
    else:
        piece.write_bytes(stored[:100] + b"?" + stored[101:])
    key = f"{piece.parent.name}/{piece.name}"
    consumer, got = broker.client().subscribe("t", "stands"), list[bytes]()
    # The consumer may need it first, or the broker for it.
    with pytest.raises(JournalDamaged, match=re.escape(key)):
        receive_all(consumer, got)
    assert got == [payload(number) for number in range(len(got))]
    assert 0 < len(got) < COUNT
    # Others go on.
    broker.client().create_producer("t").send(b"now")
    consumer.seek(ids[-3])
    assert consumer.receive(WAIT_MS).data() in {payload(COUNT - 3), payload(COUNT - 2)}
    piece.write_bytes(stored)
    waits = broker.client().subscribe("t", "waits")
    assert [patiently(waits) for _ in range(COUNT)] == [payload(number) for number in range(COUNT)]
