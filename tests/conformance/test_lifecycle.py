"""Opening, closing, pickling, forking, unsubscribing over every carrier."""

from __future__ import annotations

import errno
import os
import pickle
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from pulsar_ray.client.client import _SHARED, Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.dispatcher_session import DispatcherSession
from pulsar_ray.client.options.schema import StringSchema
from pulsar_ray.errors import (
    AlreadyClosed,
    ConsumerBusy,
    ForkedClient,
    InvalidTopicName,
    NotAllowedError,
    ProducerBusy,
    PulsarException,
    Result,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorFlush
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport import ray_connection
from tests.conformance.broker import EARLIEST, Broker, numbers, receive, values

ray_dumps: Any = cloudpickle.dumps
"""As Ray pickles arguments: methods of classes go along by value, unlike with the library's own pickle."""

Quiet = Callable[[Consumer], None]


def pickled(client: Client, thing: object, monkeypatch: pytest.MonkeyPatch) -> object:
    """`thing` as a task in another process gets it, which makes one client for all handles of this one."""
    options = client._options
    key = (options.service_url, str(options.data_dir), options.transport)
    monkeypatch.setitem(_SHARED._clients, key, client)
    return pickle.loads(ray_dumps(thing))


def test_everything_refuses_after_its_close(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    reader = client.create_reader(topic, MessageId.earliest)
    producer.send_many([b"a", b"b", b"c"])
    producer.send(b"d")
    # What waits is in the queue: being handed out, and behind that.
    assert [consumer.receive(10_000).data(), reader.read_next(10_000).data()] == [b"a", b"a"]
    for closable in (producer, consumer, reader):
        wait_until(closable.is_connected, what="it is connected")
        closable.close()
        assert not closable.is_connected()
        with pytest.raises(AlreadyClosed):
            closable.close()
    refusing: list[Callable[[], object]] = [
        consumer.receive,
        lambda: consumer.receive(0),
        consumer.batch_receive,
        consumer.receive_arrow,
        lambda: consumer.receive_arrow(timeout_millis=0),
        lambda: consumer.receive_async().result(10),
        consumer.unsubscribe,
        lambda: consumer.seek(MessageId.earliest),
        consumer.get_last_message_id,
        reader.read_next,
        reader.has_message_available,
    ]
    for call in refusing:
        with pytest.raises(AlreadyClosed):
            call()
    client.close()
    with pytest.raises(AlreadyClosed):
        client.close()
    with pytest.raises(AlreadyClosed):
        client.create_producer(topic)


def test_what_left_by_other_means_may_be_closed_once_in_silence(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    consumer.unsubscribe()
    other = broker.client()
    with other.create_producer(topic) as producer:
        producer.send(b"x", partition_key="k")
    closable: list[Any] = [
        other.create_producer(topic),
        other.subscribe(topic, "other"),
        other.create_reader(topic, MessageId.earliest),
        other.create_table_view(topic),
        other,
    ]
    other.shutdown()
    for thing in (consumer, *closable):
        thing.close()
        with pytest.raises(AlreadyClosed):
            thing.close()
        with thing:
            pass


def test_leaving_a_block_closes_and_never_says_that_it_is_closed(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    opened: list[Callable[[], Any]] = [
        lambda: client.create_producer(topic),
        lambda: client.subscribe(topic, "s"),
        lambda: client.create_reader(topic, MessageId.earliest),
        lambda: client.create_table_view(topic),
        broker.client,
        broker.admin,
    ]
    for open_it in opened:
        with open_it() as thing:
            assert thing is not None
        with pytest.raises(AlreadyClosed):
            thing.close()
        with open_it() as thing:
            thing.close()
        with pytest.raises(KeyError), open_it() as thing:
            raise KeyError
        with pytest.raises(AlreadyClosed):
            thing.close()
    with client.subscribe(topic, "s") as consumer:
        consumer.unsubscribe()
    with broker.client() as other, other.create_producer(topic) as producer:
        other.shutdown()
    with pytest.raises(AlreadyClosed):
        producer.close()
    with broker.client() as other, other.create_producer(topic, batching_enabled=True) as producer:
        producer.send_async(b"pending", None)
        other.close()
    assert broker.stored(topic) == [b"pending"]


def test_errors_of_closing_name_what_was_closed(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    named: list[tuple[Any, str, Callable[[Any], object]]] = [
        (client.create_producer(topic), "producer", lambda thing: thing.send(b"x")),
        (client.subscribe(topic, "s"), "consumer", lambda thing: thing.receive()),
        (client.create_reader(topic, MessageId.latest), "reader", lambda thing: thing.read_next()),
        (client.create_table_view(topic), "table view", lambda thing: thing.close()),
        (broker.client(), "client", lambda thing: thing.subscribe(topic, "s")),
        (broker.admin(), "admin", lambda thing: thing.topics.list()),
    ]
    for thing, name, use in named:
        thing.close()
        for call in (thing.close, lambda: use(thing)):  # noqa: B023
            with pytest.raises(AlreadyClosed, match=f"the {name} is closed"):
                call()


def test_what_was_pickled_and_never_used_is_closed_without_being_opened(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    # Exclusive: opening another one would raise.
    handles = [client.subscribe(topic, "s"), client.create_producer(topic, producer_name="only")]
    reader = client.create_reader(topic, MessageId.earliest)
    for handle in (*handles, reader):
        for by_leaving in (True, False):
            unused: Any = pickled(client, handle, monkeypatch)
            if by_leaving:
                with unused:
                    pass
            else:
                unused.close()
            assert not unused.is_connected()
            with pytest.raises(AlreadyClosed):
                unused.close()
            with unused, pytest.raises(AlreadyClosed):
                unused.send(b"x") if hasattr(unused, "send") else unused.seek(MessageId.earliest)
    reader.close()
    with pickled(client, reader, monkeypatch) as used:  # type: ignore[attr-defined]
        assert used.has_message_available() is False
    with pytest.raises(AlreadyClosed):
        used.read_next()


def test_a_client_waits_for_what_another_thread_is_closing(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    results: list[Any] = []
    broker.cluster.kill(topic, keep_down=True)
    producer.send_async(b"pending", lambda result, _: results.append(result))
    closing = [threading.Thread(target=thing.close) for thing in (producer, client)]
    closing[0].start()
    wait_until(lambda: producer.ending.is_over, what="the producer is being closed")
    closing[1].start()
    wait_until(lambda: client.ending.is_over, what="the client is being closed")
    broker.cluster.allow(topic)
    for thread in closing:
        thread.join(30)
    assert results == [Result.Ok]
    assert broker.stored(topic) == [b"pending"]


def test_closing_a_client_closes_what_it_opened(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    consumer = client.subscribe(topic, "s")
    producer.send_async(b"pending", None)
    client.close()
    assert broker.stored(topic) == [b"pending"]
    with pytest.raises(AlreadyClosed):
        producer.send(b"x")
    with pytest.raises(AlreadyClosed):
        consumer.receive()
    with broker.client() as other:
        assert values(other.subscribe(topic, "s"), 1) == [b"pending"]


def test_a_shut_down_client_ends_at_once(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic)
    broker.cluster.kill(topic, keep_down=True)
    results: list[object] = []
    producer.send_async(b"x", lambda result, _: results.append(result))
    client.shutdown()
    assert len(results) == 1
    with pytest.raises(PulsarException):
        producer.send(b"y")
    broker.cluster.allow(topic)


def test_unsubscribe_deletes_and_a_new_one_starts_afresh(
    broker: Broker, client: Client, assert_quiet: Quiet
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"old")
    values(consumer, 1)
    consumer.unsubscribe()
    for call in (consumer.unsubscribe, consumer.receive):
        with pytest.raises(AlreadyClosed):
            call()
    partition = broker.cluster.partition(topic).server
    assert partition is not None
    assert partition.stats()["subscriptions"] == []
    for _ in range(2):
        again = client.subscribe(topic, "s")
        assert_quiet(again)
        producer.send(b"new")
        assert values(again, 1) == [b"new"]
        again.unsubscribe()
    earliest = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert values(earliest, 3) == [b"old", b"new", b"new"]


def test_unsubscribe_is_refused_while_others_are_connected(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    first = client.subscribe(topic, "s", ConsumerType.Shared)
    second = broker.client().subscribe(topic, "s", ConsumerType.Shared)
    with pytest.raises(PulsarException):
        first.unsubscribe()
    client.create_producer(topic).send(b"x")
    second.close()
    assert values(first, 1) == [b"x"]
    first.unsubscribe()


def test_a_consumer_that_could_not_unsubscribe_finds_new_topics(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    pattern = re.compile(f"{re.escape(topic)}.*")
    consumer = client.subscribe(pattern, "s", pattern_auto_discovery_period=1)

    def fail(_: DispatcherSession, __: float) -> None:
        raise Timeout("no answer")

    with monkeypatch.context() as failing:
        failing.setattr(DispatcherSession, "unsubscribe", fail)
        with pytest.raises(Timeout):
            consumer.unsubscribe()
    client.create_producer(f"{topic}-later").send(b"x")
    assert values(consumer, 1) == [b"x"]
    consumer.unsubscribe()


def test_nothing_is_left_on_disk_of_a_deleted_subscription(
    broker: Broker, client: Client, tmp_path: Path
) -> None:
    topic = broker.topic()
    client.subscribe(topic, "kept").close()
    (kept,) = tmp_path.glob("**/s/*")
    consumer = client.subscribe(topic, "deleted")
    assert len(list(kept.parent.iterdir())) == 2
    consumer.unsubscribe()
    wait_until(lambda: list(kept.parent.iterdir()) == [kept], what="its directory goes")
    # As if its dispatcher had died before it did that.
    kept.with_name(str(int(kept.name) + 1)).mkdir()
    broker.restart(kill=True)
    again = broker.client()
    again.subscribe(topic, "kept")
    wait_until(lambda: list(kept.parent.iterdir()) == [kept], what="its directory goes")


def test_a_subscription_can_be_deleted_when_nothing_of_it_can_be_written(
    broker: Broker, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = client.subscribe(broker.topic(), "s")

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CursorFlush, "run", full)
    consumer.unsubscribe()
    wait_until(lambda: not list(tmp_path.glob("**/s/*")), what="its directory goes")


def test_a_deleted_subscription_stays_deleted_after_restarts(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic).send(b"old")
    client.subscribe(topic, "s", initial_position=EARLIEST).unsubscribe()
    broker.restart(kill=True)
    partition = broker.cluster.partition(topic).server
    assert partition is not None
    assert partition.stats()["subscriptions"] == []


def test_pickled_handles_are_new_ones_with_the_same_settings(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    assert pickled(client, client, monkeypatch) is client
    producer = client.create_producer(topic, schema=StringSchema())
    copy = pickled(client, producer, monkeypatch)
    assert isinstance(copy, type(producer))
    assert copy.producer_name() != producer.producer_name()
    shared = client.subscribe(topic, "s", ConsumerType.Shared, schema=StringSchema())
    other = pickled(client, shared, monkeypatch)
    assert isinstance(other, Consumer)
    copy.send("ä")
    producer.send("b")
    reader = client.create_reader(topic, MessageId.earliest, schema=StringSchema())
    read = pickled(client, reader, monkeypatch)
    assert isinstance(read, type(reader))
    assert [read.read_next(20_000).value() for _ in range(2)] == ["ä", "b"]
    shared.close()
    assert sorted(message.value() for message in receive(other, 2)) == ["b", "ä"]


def test_pickled_handles_that_exclude_each_other_say_so(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    named = client.create_producer(topic, producer_name="mine")
    exclusive = client.subscribe(topic, "s")
    with pytest.raises(ProducerBusy):
        pickled(client, named, monkeypatch).send(b"x")  # type: ignore[attr-defined]
    with pytest.raises(ConsumerBusy):
        pickled(client, exclusive, monkeypatch).receive(5000)  # type: ignore[attr-defined]
    named.send(b"still there")
    assert values(exclusive, 1) == [b"still there"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_typed_error_and_leaves_the_parent_alone(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"before")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            calls: list[Callable[[], object]] = [
                lambda: producer.send(b"child"),
                lambda: consumer.receive(1000),
                lambda: client.create_producer(topic),
            ]
            failed = 0
            for call in calls:
                try:
                    call()
                except ForkedClient:
                    failed += 1
            code = 0 if failed == len(calls) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    producer.send(b"after")
    assert values(consumer, 2) == [b"before", b"after"]


def test_string_schemas_encode_and_decode(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, schema=StringSchema())
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    producer.send("grün")
    (last,) = producer.send_many(["a", None, "ß"])  # type: ignore[list-item]
    assert last == consumer.get_last_message_id()
    messages = receive(consumer, 4)
    assert [message.value() for message in messages] == ["grün", "a", None, "ß"]
    assert messages[0].data() == "grün".encode()
    for wrong in (b"bytes", 3):
        with pytest.raises(TypeError):
            producer.send(wrong)
    with pytest.raises(TypeError):
        client.create_producer(topic).send("text")


def test_auto_creation_can_be_switched_off(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(allow_auto_topic_creation=False)
    client = broker.client(operation_timeout_seconds=5)
    calls: list[Callable[[], object]] = [
        lambda: client.create_producer("missing"),
        lambda: client.subscribe("missing", "s"),
        lambda: client.create_reader("missing", MessageId.earliest),
        lambda: client.get_topic_partitions("missing"),
    ]
    for call in calls:
        with pytest.raises(TopicNotFound):
            call()


def test_topics_are_made_at_their_first_use(broker: Broker, client: Client) -> None:
    assert client.create_producer("made").topic() == "persistent://public/default/made"
    assert client.get_topic_partitions("made too") == ["persistent://public/default/made too"]


@pytest.mark.parametrize(
    "name",
    ["", "a/b", "a/b/c/d", "persistent://a/b", "persistent://public/default/", "http://public/default/x"],
)
def test_bad_topic_names_are_refused(broker: Broker, client: Client, name: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.create_producer(name),
        lambda: client.subscribe(name, "s"),
        lambda: client.create_reader(name, MessageId.latest),
        lambda: client.get_topic_partitions(name),
    ]
    for call in calls:
        with pytest.raises(InvalidTopicName) as caught:
            call()
        assert repr(name) in str(caught.value) or name in str(caught.value)


def test_places_that_are_not_there_are_named(broker: Broker, client: Client) -> None:
    with pytest.raises(TopicNotFound, match="nobody"):
        client.create_producer("persistent://nobody/default/x")
    topic = broker.topic(partitions=2)
    with pytest.raises(NotAllowedError):
        client.create_producer(f"{topic}-partition-2")


def test_a_partition_that_does_not_come_up_ends_in_a_timeout_that_says_why(broker: Broker) -> None:
    topic = broker.topic()
    client = broker.client(operation_timeout_seconds=1)
    broker.cluster.kill(topic, keep_down=True)
    with pytest.raises((Timeout, PulsarException), match="restarting"):
        client.create_producer(topic)
    broker.cluster.allow(topic)
    assert client.create_producer(topic).send(b"now").entry_id() == 0


def test_a_missing_subscription_is_not_made_where_that_is_off(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(allow_auto_subscription_creation=False)
    client, topic = broker.client(operation_timeout_seconds=5), broker.topic()
    client.create_producer(topic).send(b"x")
    with pytest.raises(SubscriptionNotFound):
        client.subscribe(topic, "s")
    assert client.create_reader(topic, MessageId.earliest).read_next(20_000).data() == b"x"


def test_numbers_of_a_new_topic_start_at_zero(broker: Broker, client: Client) -> None:
    producer = client.create_producer(broker.topic())
    assert [producer.send(value).entry_id() for value in numbers(0, 3)] == [0, 1, 2]


def test_a_consumer_that_has_left_stays_away_while_connections_come_and_go(
    broker: Broker, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if transport == "lossy":
        monkeypatch.setattr(ray_connection, "LOST_CALLS", 1)  # every call that is lost ends the connection
    client, topic = broker.client(), broker.topic(2)
    for _ in range(20):
        client.subscribe(topic, "s").close()
