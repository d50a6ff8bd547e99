"""Connections that are lost at the worst of moments, over every carrier."""

from __future__ import annotations

import errno
import re
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from pulsar_ray.broker.subscription.consumers.connected_consumers import ConsumerEndpoint
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.endpoint.endpoint_link import ClosingEndpoint
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import (
    AlreadyClosed,
    BrokerPersistenceError,
    ConsumerBusy,
    NotConnected,
    ProducerBusy,
    PulsarException,
    SessionLost,
    SubscriptionNotFound,
    Timeout,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import AttachReply
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, receive, values

SOON: dict[str, Any] = {"auto_update_partitions_interval_seconds": 1}


def lose(link: ActorLink) -> None:
    """As a network would; the link attaches again."""
    link._lost(link.carrier, SessionLost("the connection was cut"))


def link_of(producer: Producer) -> ActorLink:
    """The link to its only partition."""
    link = producer._partitions[0].link
    assert isinstance(link, ActorLink)
    return link


class Attaching:
    """Holds up whoever attaches, until `may_go_on`; with `error` attaching fails."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.error: NotConnected | None = None
        attach = broker.cluster.attach

        def attach_later(*arguments: Any, **named: Any) -> AttachReply:
            self.may_go_on.wait(20)
            if self.error is not None:
                raise self.error
            return attach(*arguments, **named)

        monkeypatch.setattr(broker.cluster, "attach", attach_later)


class UnansweredOpening:
    """Loses the first answer to the opening of a consumer that was found later.

    The thread that opens it asks again when it `may_go_on`; the next connection has opened it by then.
    """

    def __init__(self, dispatcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lost: list[ActorLink] = []
        self.may_go_on = threading.Event()
        request_async, ensure_attached = ActorLink.request_async, ActorLink.ensure_attached

        def lose_first(link: ActorLink, build: Any, *arguments: Any, **named: Any) -> None:
            request_async(link, build, *arguments, **named)
            if not self.lost and link.address == dispatcher and build.__name__ == "open_request":
                self.lost.append(link)
                lose(link)

        def ask_again_later(link: ActorLink, deadline: float) -> AttachReply:
            if link in self.lost and threading.current_thread().name == "pulsar-ray-topics":
                self.may_go_on.wait(20)
            return ensure_attached(link, deadline)

        monkeypatch.setattr(ActorLink, "request_async", lose_first)
        monkeypatch.setattr(ActorLink, "ensure_attached", ask_again_later)


def test_a_producer_that_closes_while_its_connection_is_away_gives_its_name_back(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    client.create_producer(topic)  # another one of the same session, which therefore stays
    producer = client.create_producer(topic, "mine")
    link, producer_id = link_of(producer), producer._partitions[0].producer_id
    attaching = Attaching(broker, monkeypatch)
    lose(link)
    closing = threading.Thread(target=producer.close)
    closing.start()
    wait_until(
        lambda: not closing.is_alive() or isinstance(link._endpoints.get(producer_id), ClosingEndpoint),
        what="it closes",
    )
    attaching.may_go_on.set()
    closing.join(20)
    assert client.create_producer(topic, "mine").send(b"x").entry_id() == 0


@pytest.mark.parametrize("has_asked", [False, True])
def test_a_producer_that_closes_while_nobody_can_attach_gives_its_name_back_later(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, has_asked: bool
) -> None:
    topic = broker.topic()
    client.create_producer(topic)
    producer = client.create_producer(topic, "mine")
    link = link_of(producer)
    attaching = Attaching(broker, monkeypatch)
    attaching.error = NotConnected("the actor is restarting")
    attaching.may_go_on.set()
    if has_asked:
        send, wait = link.send, link.wait

        def lose_first(event: Any, deadline: float) -> bool:
            monkeypatch.setattr(link, "wait", wait)
            monkeypatch.setattr(link, "send", send)
            lose(link)
            return wait(event, deadline)

        def say_nothing(*arguments: Any, **named: Any) -> bool:
            monkeypatch.setattr(link, "wait", lose_first)
            return True

        monkeypatch.setattr(link, "send", say_nothing)
    else:
        lose(link)
        wait_until(lambda: link.last_error is not None, what="an attempt to attach failed")
    began = time.monotonic()
    producer.close()
    assert time.monotonic() - began < client.operation_timeout_s
    attaching.error = None

    def opens() -> bool:
        with suppress(ProducerBusy):
            client.create_producer(topic, "mine").send(b"x")
            return True
        return False

    wait_until(opens, what="the name is free")


def test_a_consumer_whose_opening_got_no_answer_stays_away_once_it_has_left(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(1)
    consumer = client.subscribe(topic, "s", **SOON)
    opening = UnansweredOpening(f"{topic}-partition-1 -> s", monkeypatch)
    broker.admin().topics.update_partitioned_topic(topic, 2)
    wait_until(lambda: opening.lost and consumer.is_connected(), what="it is open by the next connection")
    discovery = consumer._core.partitions.discovery
    assert discovery is not None
    consumer.close()
    opening.may_go_on.set()
    discovery.end()
    again = client.subscribe(topic, "s")
    client.create_producer(f"{topic}-partition-1").send(b"x")
    assert values(again, 1) == [b"x"]


def test_a_topic_that_is_deleted_and_made_anew_before_its_opening_is_answered_is_followed(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "persistent://public/default/found-later"
    consumer = client.subscribe(re.compile("found-.*"), "s", pattern_auto_discovery_period=1)
    partitions = consumer._core.partitions
    opening = UnansweredOpening(f"{topic} -> s", monkeypatch)
    broker.cluster.create_topic(topic, 0)
    wait_until(lambda: opening.lost and partitions.all, what="it is open by the next connection")
    client.create_producer(topic).send(b"first")
    assert values(consumer, 1, acknowledge=True) == [b"first"]
    broker.cluster.delete_topic(topic)
    broker.cluster.create_topic(topic, 0)
    broker.client().create_producer(topic).send(b"second")
    (link,) = opening.lost
    wait_until(lambda: isinstance(link.last_error, SubscriptionNotFound), what="it was refused")
    opening.may_go_on.set()
    assert values(consumer, 1) == [b"second"]


def test_a_consumer_that_closes_while_a_partition_is_found_has_acknowledged_there(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(1)
    added = f"{topic}-partition-1"
    consumer = client.subscribe(topic, "s", **SOON)
    discovery = consumer._core.partitions.discovery
    assert discovery is not None
    is_open, is_closing = threading.Event(), threading.Event()
    open_, stop_threads = PartitionConsumer.open, consumer._stop_threads

    def open_and_look_away(partition: PartitionConsumer, deadline: float) -> None:
        open_(partition, deadline)
        if partition.route.topic == added:
            is_open.set()
            is_closing.wait(20)

    def finder_first() -> None:
        is_closing.set()
        discovery.end()
        stop_threads()

    with monkeypatch.context() as patched:
        patched.setattr(PartitionConsumer, "open", open_and_look_away)
        patched.setattr(consumer, "_stop_threads", finder_first)
        broker.admin().topics.update_partitioned_topic(topic, 2)
        assert is_open.wait(20)
        client.create_producer(added).send(b"x")
        (message,) = receive(consumer, 1)
        consumer.acknowledge(message)
        consumer.close()
    assert not client.subscribe(topic, "s").has_message_available()


def test_who_asks_for_a_connection_gets_none_before_the_loss_of_the_last_one_is_known(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    partition = consumer._core.partitions.all[0]
    link, on_detached = partition.link, partition.session.on_detached
    were_attached: list[bool] = []

    def ask() -> None:
        with suppress(AlreadyClosed):  # the carrier may be lost again, until the test is over
            link.ensure_attached(time.monotonic() + 20)

    def somebody_asks() -> None:
        asking = threading.Thread(target=ask)
        asking.start()
        if not were_attached:
            asking.join(0.3)
        were_attached.append(link.is_attached)
        on_detached()

    monkeypatch.setattr(partition.session, "on_detached", somebody_asks)
    lose(link)
    assert were_attached[0] is False
    client.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]


def test_a_partition_that_does_not_answer_keeps_a_producer_open_on_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, topic = broker.client(), broker.topic(2)
    names = [f"{topic}-partition-{index}" for index in range(2)]
    kept = [client.create_producer(name) for name in names]
    producer = client.create_producer(topic, "mine")
    silent = broker.cluster.partition(names[0])
    silent.freeze()
    with monkeypatch.context() as hurried:
        hurried.setattr(client, "operation_timeout_s", 1.0)
        with pytest.raises(Timeout):
            producer.close()
    assert client.create_producer(names[1], "mine").send(b"x").partition() == 1
    silent.thaw()

    def opens() -> bool:
        with suppress(ProducerBusy, Timeout):
            client.create_producer(names[0], "mine").send(b"x")
            return True
        return False

    wait_until(opens, what="the name is free there too")
    wait_until(lambda: all(one.is_connected() for one in kept), what="those that were kept are connected")


def test_a_dispatcher_that_does_not_answer_keeps_a_consumer_open_at_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, topic = broker.client(), broker.topic(2)
    names = [f"{topic}-partition-{index}" for index in range(2)]
    consumer = client.subscribe(topic, "s")
    silent = broker.cluster.dispatcher_of(names[0], "s")
    silent.freeze()
    with monkeypatch.context() as hurried:
        hurried.setattr(consumer, "_operation_timeout_s", 1.0)
        with pytest.raises(Timeout):
            consumer.close()
    other = client.subscribe(names[1], "s")
    wait_until(other.is_connected, what="it is connected")
    silent.thaw()

    def opens() -> bool:
        with suppress(ConsumerBusy, Timeout):
            return client.subscribe(names[0], "s").is_connected()
        return False

    wait_until(opens, what="the place is free there too")


@pytest.mark.parametrize("by_id", [True, False])
def test_a_failure_whose_answer_is_lost_counts_once(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, by_id: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send_many([b"a", b"b", b"c"])
    messages = receive(consumer, 3)
    link = consumer._core.partitions.all[0].link
    answer = ServedSubscription._answer_done
    lost: list[int] = []

    def lose_first(host: ServedSubscription, endpoint: ConsumerEndpoint, request_id: int) -> None:
        if lost:
            answer(host, endpoint, request_id)
            return
        lost.append(request_id)
        lose(link)

    monkeypatch.setattr(ServedSubscription, "_answer_done", lose_first)
    consumer.negative_acknowledge(messages[1].message_id() if by_id else messages[1])
    (again,) = receive(consumer, 1)
    wait_until(lambda: not consumer._core.partitions.all[0].requests.unanswered(), what="the answer")
    assert (again.data(), again.redelivery_count(), len(lost)) == (b"b", 1, 1)
    with pytest.raises(Timeout):
        consumer.receive(300)
    consumer.negative_acknowledge(again.message_id() if by_id else again)
    (again,) = receive(consumer, 1)
    assert (again.data(), again.redelivery_count()) == (b"b", 2)


def test_whoever_waits_for_an_answer_is_told_when_the_client_is_closed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = broker.client()
    consumer = client.subscribe(broker.topic(), "s")
    link = consumer._core.partitions.all[0].link
    asked = threading.Event()

    def say_nothing(*arguments: Any, **named: Any) -> bool:
        asked.set()
        return True

    monkeypatch.setattr(link, "send", say_nothing)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            consumer.get_last_message_id()
        except AlreadyClosed as error:
            errors.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert asked.wait(10)
    client.shutdown()
    wait_until(lambda: errors, what="the error, long before the operation's time is over")


def test_who_is_refused_is_open_nowhere_any_more(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    present = client.subscribe(topic, "s", ConsumerType.Shared)
    link = present._core.partitions.all[0].link
    for _ in range(20):
        with pytest.raises(ConsumerBusy):
            client.subscribe(topic, "s")
        assert len(link._endpoints) == 1
    present.close()
    client.subscribe(topic, "s")


def test_a_consumer_that_one_partition_refuses_leaves_the_others_when_it_closes(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic(partitions=3)
    producer = client.create_producer(f"{topic}-partition-1")
    consumer = client.subscribe(topic, "s")
    producer.send_many([b"done", b"left"])
    assert values(consumer, 1, acknowledge=True) == [b"done"]
    consumer._core.partitions.all[0].session.on_refused(ConsumerBusy("somebody else is there by now"))
    assert values(consumer, 1) == [b"left"]
    with pytest.raises(ConsumerBusy):
        consumer.receive(1000)
    consumer.close()
    again = client.subscribe(f"{topic}-partition-1", "s")
    assert values(again, 1, acknowledge=True) == [b"left"]


def test_a_subscription_is_made_once_the_partitions_disk_takes_it(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    sent = client.create_producer(topic).send(b"x")
    for call in ("writev", "fdatasync"):
        broker.cluster.disk.fail(call, *[errno.ENOSPC] * 1_000)
        with pytest.raises(BrokerPersistenceError):
            # If the partition is asleep it is waited for, as it may have space at any time.
            broker.client(operation_timeout_seconds=6).subscribe(topic, "s", initial_position=EARLIEST)
        broker.cluster.disk.errors.clear()
        # The dispatcher was started, and could not register: that is not so for good.
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        assert consumer.receive(WAIT_MS).message_id() == sent
        consumer.unsubscribe()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_partition_is_made_once_its_disk_takes_it(broker: Broker, client: Client, error: int) -> None:
    topic = broker.topic()
    broker.cluster.disk.fail("fdatasync", *[error] * 3)
    with suppress(PulsarException):
        client.create_producer(topic).close()
    broker.cluster.disk.errors.clear()
    # It was started, and made nothing: there is nothing that could be missing.
    client.create_producer(topic).send(b"x")


@pytest.mark.parametrize("is_back", [False, True], ids=["away", "back"])
def test_a_producer_sends_whose_carrier_is_lost_as_its_opening_is_answered(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s")
    add_endpoint = ActorLink.add_endpoint

    def lose_first(link: ActorLink, endpoint_id: int, endpoint: Any) -> None:
        if isinstance(endpoint, PartitionProducer):
            monkeypatch.setattr(ActorLink, "add_endpoint", add_endpoint)
            lose(link)
            if is_back:
                link.ensure_attached(time.monotonic() + WAIT_MS / 1000)
        add_endpoint(link, endpoint_id, endpoint)

    monkeypatch.setattr(ActorLink, "add_endpoint", lose_first)
    producer = broker.client().create_producer(topic)
    assert producer.send_many([b"a", b"b"])
    producer.send_async(b"c", lambda *_: None)
    producer.flush()
    assert values(consumer, 3) == [b"a", b"b", b"c"]
