"""Messages in chunks in streams and landings, on a broker in this process, without Ray and Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.broker.subscription.log import incomplete_messages
from pulsar_ray.client.client import Client
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.dispatch.blocks.chunk_limits import ChunkLimits
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark.streaming.batch_limits import BatchLimits
from pulsar_ray_spark.streaming.query_topics import plan_topic
from tests.conformance.broker import Broker
from tests.conformance.chunking import CHUNK_BYTES, Halves
from tests.spark.streamer import NAME, Killed, Killer, Streamer, numbered
from tests.spark.test_landing import Lander


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with ledgers of four entries, which keeps what is not acknowledged alone."""
    broker = Broker(
        tmp_path / "data",
        "socket",
        1,
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=4,
        managed_ledger_min_ledger_rollover_time_minutes=0,
        new_topic_retention_seconds=0,
    )
    yield broker
    broker.close()


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> Halves:
    return Halves(monkeypatch)


def large(letter: str) -> str:
    """A message of five chunks."""
    return letter * (4 * CHUNK_BYTES + 1)


def chunking(client: Client, topic: str) -> Producer:
    return client.create_producer(topic, chunking_enabled=True, chunk_max_message_size=CHUNK_BYTES)


def test_a_message_is_in_the_batch_of_its_last_chunk_and_keeps_the_others_until_then(
    broker: Broker, halves: Halves
) -> None:
    client, topic = broker.client(), broker.topic()
    slow, quick = chunking(client, topic), chunking(client, topic)
    streamer = Streamer(broker, topic)
    quick.send(b"m0")
    halves.begin(slow, large("x").encode())
    streamer.stream()
    for value in numbered(1, 20):
        quick.send(value.encode())
        streamer.stream()
    assert streamer.backlog(topic) == 2, "the chunks that are there wait for the others"
    halves.finish(slow)
    quick.send(b"m20")
    streamer.stream()
    assert streamer.values() == [*numbered(20), large("x"), "m20"]
    assert streamer.backlog(topic) == 0
    last = broker.stored_blocks(topic)[-1]
    wait_until(lambda: broker.first_stored(topic)[0] == last[0], what="nothing holds the chunks any more")


def test_each_batch_has_the_same_messages_once_wherever_the_process_ends(
    broker: Broker, halves: Halves
) -> None:
    moment, ended = 0, True
    while ended:
        moment += 1
        topic = broker.topic()
        streamer = Streamer(broker, topic)
        streamer.limits = BatchLimits(2)
        slow, quick = (chunking(broker.client(), topic) for _ in range(2))
        expected: list[str] = []
        ended = False
        for letter in "xyz":
            halves.begin(slow, large(letter).encode(), random.Random(moment).randrange(1, 5))
            for value in numbered(3):
                quick.send(f"{letter}{value}".encode())
                expected.append(f"{letter}{value}")
            try:
                streamer.stream(killer=Killer(moment))
            except Killed:
                ended = True
            halves.finish(slow)
            expected.append(large(letter))
        streamer.stream()
        assert streamer.values() == expected, moment
        assert streamer.backlog(topic) == 0
        broker.admin().topics.delete(plan_topic(NAME), force=True)
        broker.admin().topics.delete(topic, force=True)
    assert moment > 8


def test_a_message_whose_producer_left_is_waited_for_no_longer_than_by_consumers(
    broker: Broker, halves: Halves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incomplete_messages, "DEFAULT_LIMITS", ChunkLimits(expire_ms=100))
    client, topic = broker.client(), broker.topic()
    gone, alive, quick = (chunking(client, topic) for _ in range(3))
    streamer = Streamer(broker, topic)
    halves.begin(gone, large("x").encode())
    halves.begin(alive, large("y").encode())
    gone.close()
    sent: list[str] = []

    def only_the_living_is_kept() -> bool:
        sent.append(f"m{len(sent)}")
        quick.send(sent[-1].encode())
        streamer.stream()
        return streamer.backlog(topic) == 2

    wait_until(only_the_living_is_kept, what="the other one is given up")
    halves.finish(alive)
    streamer.stream()
    assert streamer.values() == [*sent, large("y")]
    assert streamer.backlog(topic) == 0


def test_a_message_in_chunks_is_landed_once_with_its_last_chunk(
    broker: Broker, halves: Halves, tmp_path: Path
) -> None:
    client, topic = broker.client(), broker.topic()
    slow, quick = chunking(client, topic), chunking(client, topic)
    lander = Lander(broker, topic, tmp_path / "landed")
    halves.begin(slow, large("x").encode())
    assert lander.land() == 1
    assert lander.files() == {}, "a range of chunks alone has no file"
    for value in numbered(9):
        quick.send(value.encode())
    assert lander.land() == 1
    halves.finish(slow)
    quick.send(large("y").encode())
    assert lander.land() == 1
    assert lander.values() == [*numbered(9), large("x"), large("y")]
