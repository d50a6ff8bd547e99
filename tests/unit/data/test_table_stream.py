"""Streams of tables from a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_ray.data.planning.plan import AtSubscription, AtTime
from pulsar_ray.data.reading.table_stream import TableStream, batches
from pulsar_ray.errors import AlreadyClosed, InvalidConfiguration
from pulsar_ray.model.message_id import MessageId
from tests.conformance.broker import Broker

IDLE_MS = 400


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, "ray", seed=1)
    yield broker
    broker.close()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, end)]


def values(table: pa.Table) -> list[bytes]:
    return list(table.column("value").to_pylist())


def rest_of(stream: TableStream) -> list[bytes]:
    with stream:
        return [value for table in stream for value in values(table)]


def test_a_table_is_acknowledged_when_the_next_one_is_asked_for(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    client.create_producer(topic).send_many(numbers(0, 25))
    stream = batches(topic, "s", batch_size=10, idle_millis=IDLE_MS, client=client)
    assert [values(next(stream)) for _ in range(2)] == [numbers(0, 10), numbers(10, 20)]
    stream.close()
    assert rest_of(batches(topic, "s", idle_millis=IDLE_MS, client=client)) == numbers(10, 25)
    assert rest_of(batches(topic, "s", idle_millis=IDLE_MS, client=client)) == []


def test_only_a_commit_acknowledges_if_the_user_wants_to(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 30))
    stream = batches(topic, "s", batch_size=10, idle_millis=IDLE_MS, commits_itself=False, client=client)
    next(stream)
    next(stream)
    stream.commit()
    assert values(next(stream)) == numbers(20, 30)
    stream.close()
    again = batches(topic, "s", idle_millis=IDLE_MS, commits_itself=False, columns=["value"], client=client)
    assert next(again).column_names == ["value"]
    again.commit()
    producer.send(b"later")
    assert rest_of(again) == [b"later"]


def test_a_stream_without_a_subscription_begins_where_it_is_told(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 5)]
    for start, first in (("earliest", 0), (ids[3], 3), (AtTime(0), 0), (MessageId.earliest, 0)):
        found = rest_of(batches(topic, start=start, idle_millis=IDLE_MS, client=client))  # type: ignore[arg-type]
        assert found == numbers(first, 5)
    late = batches(topic, start="latest", idle_millis=IDLE_MS, client=client)
    producer.send(b"later")
    assert rest_of(late) == [b"later"]
    assert broker.admin().topics.subscriptions(topic) == []


def test_wrong_arguments_are_refused_before_anything_is_opened(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    with pytest.raises(InvalidConfiguration, match="a subscription knows where it goes on"):
        batches(topic, "s", start=datetime(2024, 1, 1, tzinfo=timezone.utc), client=client)
    with pytest.raises(InvalidConfiguration, match="no place to begin a stream at"):
        batches(topic, start=AtSubscription("s"), client=client)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfiguration, match="'payload' is no column"):
        batches(topic, columns=["payload"], client=client)
    with pytest.raises(ValueError, match="batch_size"):
        batches(topic, batch_size=0, client=client)
    assert broker.admin().topics.subscriptions(topic) == []


def test_a_stream_that_is_interrupted_while_a_table_fills_goes_on_with_its_rows(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, topic = broker.client(), broker.topic()
    client.create_producer(topic).send_many(numbers(0, 25))
    stream = batches(topic, idle_millis=IDLE_MS, client=client)
    receive, calls = stream._consumer.receive_arrow, iter(range(3))

    def interrupted(rows: int, timeout_millis: int | None) -> pa.Table:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return receive(rows, timeout_millis)

    with monkeypatch.context() as patch:
        patch.setattr(stream._consumer, "receive_arrow", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    assert rest_of(stream) == numbers(0, 25)


def test_a_stream_without_a_subscription_never_waits_for_a_commit(tmp_path: Path) -> None:
    broker = Broker(tmp_path, "ray", seed=1, max_pending_acks_per_subscription=5)
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic)
    for value in numbers(0, 20):
        producer.send(value)
    stream = batches(topic, batch_size=1, commits_itself=False, idle_millis=IDLE_MS, client=client)
    assert rest_of(stream) == numbers(0, 20)
    broker.close()


def test_a_stream_may_be_closed_before_its_end(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    client.create_producer(topic).send_many(numbers(0, 25))
    with batches(topic, batch_size=10, client=client) as stream:
        for table in stream:
            assert values(table) == numbers(0, 10)
            stream.close()
            break
    with pytest.raises(AlreadyClosed):
        next(stream)
