"""Batches of a query are stored once however often they are written, over every carrier and across kills."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.producer.chunked_message import ChunkedMessage
from pulsar_ray.data.writing import publishing
from pulsar_ray.data.writing.publishing import NamedWrite, Part, Sending, publish_part
from pulsar_ray.data.writing.query_batch import QueryBatch
from pulsar_ray.data.writing.write_target import WriteTarget
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError, ProducerBusy, Timeout
from pulsar_ray.transport.actor_names import partition_name
from tests.conformance.broker import QUIET_MS, Broker, receive

ROWS = 300


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker(
        default_retention_time_in_minutes=-1, default_retention_size_in_mb=-1, max_block_rows=32
    )


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic(2)


@pytest.fixture
def target(broker: Broker, client: Client, topic: str) -> WriteTarget:
    return WriteTarget(topic, client, broker.admin())


def rows_of(batch: int, task: int) -> pa.Table:
    """The rows of one task, some with a key; each value is there once."""
    values = [b"%d-%d-%d" % (batch, task, number) for number in range(ROWS)]
    keys = [f"k{number % 7}" if number % 3 else None for number in range(ROWS)]
    return pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.string())})


def send(client: Client, topic: str, named: NamedWrite, task: int) -> int:
    """Send a task's rows; how many there are."""
    rows = rows_of(named.batch.batch_id, task)
    return sum(publish_part(client, Part(task, lambda: rows, topic, Sending(), named)).values())


def stored(broker: Broker, topic: str) -> list[bytes | None]:
    return [value for index in range(2) for value in broker.stored(f"{topic}-partition-{index}")]


def all_rows(batches: int, tasks: int) -> Counter[bytes]:
    return Counter(
        value
        for batch in range(batches)
        for task in range(tasks)
        for value in rows_of(batch, task).column("value").to_pylist()
    )


def test_batches_that_are_written_again_over_kills_are_stored_once(
    broker: Broker, client: Client, topic: str, target: WriteTarget
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for batch_id in range(2):
        batch = QueryBatch("q", batch_id)
        # The first run ends in the middle, and the second one has other settings.
        named = target.begin(batch, 3)
        begun = rng.randrange(1, 3)
        for task in range(begun):
            assert send(client, topic, named, task) == ROWS
        broker.cluster.kill(partition_name(f"{topic}-partition-{rng.randrange(2)}"))
        again = target.begin(batch, 5)
        assert again[:-1] == named[:-1]
        assert sum(again.rows_stored(task, index) for task in range(3) for index in range(2)) == begun * ROWS
        for task in range(3):
            send(client, topic, again, task)
        target.end(again)
    assert Counter(stored(broker, topic)) == all_rows(2, 3)
    with pytest.raises(NotAllowedError, match="comes after batch 1"):
        target.begin(QueryBatch("q", 0), 3)


def test_rows_in_chunks_are_stored_once_although_a_run_ends_amid_one(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run stores a chunk of its last row but one, and waits in vain for the message's receipt."""
    topic, admin = broker.topic(), broker.admin()
    admin.topics.policies.set(topic, "max_message_size", 20_000)
    values = [b"first", bytes(50_000), b"middle", b"x" * 70_000, b"last"]
    rows = pa.table({"value": pa.array(values, pa.binary())})
    target, batch = WriteTarget(topic, client, admin), QueryBatch("q", 0)
    consumer = client.subscribe(topic, "s")

    def publish() -> dict[int, int]:
        return publish_part(client, Part(0, lambda: rows, topic, Sending(), target.begin(batch, 1)))

    whole = ChunkedMessage.blocks

    def some(message: ChunkedMessage, *arguments: Any) -> Any:
        return whole(message, *arguments)[: 99 if message.size < 60_000 else 1]

    with monkeypatch.context() as patch:
        patch.setattr(ChunkedMessage, "blocks", some)
        patch.setattr(publishing, "SEND_TIMEOUT_MS", 2_000)
        with pytest.raises(Timeout):
            publish()
    for _ in range(2):
        assert publish() == {0: len(values)}
    assert [message.data() for message in receive(consumer, len(values))] == values
    with pytest.raises(Timeout):
        consumer.receive(QUIET_MS)


def test_two_runs_of_a_batch_at_once_do_not_divide_it_twice(
    broker: Broker, client: Client, topic: str, target: WriteTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "NAME_FREE_S", 0.0)
    batch, other = QueryBatch("q", 0), WriteTarget(topic, broker.client(), broker.admin())
    with target.taken("q"):
        named = target.begin(batch, 2)
        with pytest.raises(ProducerBusy), other.taken("q"):
            pass
        with other.taken("q2"):
            pass
        send(client, topic, named, 0)
    with other.taken("q"):
        assert other.begin(batch, 3).layout == named.layout
    assert target.forget("q") == ["pulsar-ray-query-q/2x2/0"]


def test_a_topic_that_has_grown_gets_the_rest_of_a_batch_where_its_beginning_is(
    broker: Broker, client: Client, topic: str, target: WriteTarget
) -> None:
    batch = QueryBatch("q", 7)
    named = target.begin(batch, 2)
    send(client, topic, named, 0)
    admin = broker.admin()
    admin.topics.update_partitioned_topic(topic, 4)
    again = target.begin(batch, 2)
    assert again[:-1] == named[:-1]
    for task in range(2):
        send(client, topic, again, task)
    assert len(stored(broker, topic)) == 2 * ROWS
    target.end(again)
    following = target.begin(QueryBatch("q", 8), 2)
    assert len(following.partitions) == 4
    send(client, topic, following, 0)
    target.end(following)
    # Only what the last batch was written with is remembered.
    left = {name for ids in admin.topics.producer_sequence_ids(topic).values() for name in ids}
    assert left == {"pulsar-ray-query-q/2x4/0"}
    assert target.forget("q") == [*left]


def test_what_cannot_be_sent_is_told_by_its_column_and_stores_nothing(
    broker: Broker, client: Client, topic: str
) -> None:
    no_text = pa.StringArray.from_buffers(1, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff"))
    for rows in (
        pa.table({"value": pa.array([1])}),
        pa.table({"value": [b"v"], "key": no_text}),
        pa.table({"value": [b"v"], "key": pa.array([b"\xff"])}),
        pa.table({"value": [b"v"], "properties": pa.array([{"a": None}], pa.map_(pa.utf8(), pa.utf8()))}),
    ):
        part = Part(0, lambda rows=rows: rows, topic, Sending())  # type: ignore[misc]
        with pytest.raises(InvalidConfiguration, match=f"cannot be sent: column '{rows.column_names[-1]}'"):
            publish_part(client, part)
    assert stored(broker, topic) == []


@pytest.mark.parametrize("left", [0, ROWS - 1])
def test_another_batch_of_the_same_id_with_fewer_rows_is_refused(
    client: Client, topic: str, target: WriteTarget, left: int
) -> None:
    batch = QueryBatch("q", 0)
    send(client, topic, target.begin(batch, 1), 0)
    rows = rows_of(0, 0).slice(0, left)
    part = Part(0, lambda: rows, topic, Sending(), target.begin(batch, 1))
    with pytest.raises(InvalidConfiguration, match=r"batch 0 of 'q'.*needs another name, or forget_writes"):
        publish_part(client, part)


def test_a_write_without_a_name_keeps_its_order(broker: Broker, client: Client) -> None:
    topic, rows = broker.topic(), rows_of(0, 0)
    assert publish_part(client, Part(0, lambda: rows, topic, Sending())) == {-1: ROWS}
    assert broker.stored(topic) == rows.column("value").to_pylist()


def test_deduplication_is_turned_on_unless_the_topic_says_no(
    broker: Broker, topic: str, target: WriteTarget, client: Client
) -> None:
    topics = broker.admin().topics
    target.begin(QueryBatch("q", 0), 1)
    assert topics.policies.get(topic, "deduplication").value == {"deduplication": True}
    topics.policies.set(topic, "deduplication", False)
    with pytest.raises(NotAllowedError, match=r"policies\.set\("):
        target.begin(QueryBatch("q", 0), 1)
    memory = WriteTarget(topic.replace("persistent:", "non-persistent:"), client, broker.admin())
    with pytest.raises(InvalidConfiguration, match="stores nothing"):
        memory.begin(QueryBatch("q", 0), 1)
