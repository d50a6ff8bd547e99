"""Topics that nobody uses are deleted if their policy says so, over every carrier."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.errors import AlreadyClosed, PulsarException, Timeout
from pulsar_ray.managed_ledger.store.wake_times import read_wake_times
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, Broker, numbers, values

CAUGHT_UP = "delete_when_subscriptions_caught_up"
NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
LONGER_S = 2.5
"""After so long it would have been deleted."""


@pytest.fixture(autouse=True)
def quick(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if transport == "sleepy":
        pytest.skip("its partitions are asleep before they can report")
    inactivity = "pulsar_ray.broker.partition.backlog.due_deletions"
    monkeypatch.setattr("pulsar_ray.managed_ledger.store.wake_times.LEAST_SLACK_MS", 0)
    monkeypatch.setattr(f"{inactivity}.REPORT_AGAIN_MS", 500)
    monkeypatch.setattr("pulsar_ray.broker.catalog.wanted_topics.WANTED_MS", 200)


def delete_if_unused(broker: Broker, topic: str, mode: str = NO_SUBSCRIPTIONS) -> None:
    """Let a topic be deleted that nobody has used for a second."""
    broker.admin().topics.policies.set(
        topic,
        "inactive_topic_policies",
        delete_while_inactive=True,
        inactive_topic_delete_mode=mode,
        max_inactive_duration_seconds=1,
    )


def is_there(broker: Broker, topic: str) -> bool:
    return topic in broker.admin().topics.list("public/default")


def stays(broker: Broker, topic: str) -> None:
    """A topic is there after long enough."""
    until = time.monotonic() + LONGER_S
    wait_until(lambda: time.monotonic() > until or not is_there(broker, topic), what="the time is over")
    assert is_there(broker, topic)


def goes(broker: Broker, topic: str) -> None:
    wait_until(lambda: not is_there(broker, topic), what="it is deleted")


def removed(broker: Broker, topic: str) -> None:
    """Have a topic removed until it is deleted; its time may bring that about by itself."""
    wait_until(
        lambda: not is_there(broker, topic) or broker.cluster.remove_unused(topic), what="it is deleted"
    )
    assert not is_there(broker, topic)


def test_an_unused_topic_goes_with_its_data_and_begins_anew(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"old")
    server = broker.cluster.partition(topic).server
    assert server is not None
    directory = Path(server.ledger.directory)
    assert list(directory.glob("*.seg"))
    delete_if_unused(broker, topic)
    stays(broker, topic)
    producer.close()
    goes(broker, topic)
    wait_until(lambda: not directory.exists(), what="its data is gone")
    assert client.create_producer(topic).send(b"new").entry_id() == 0
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert values(consumer, 1) == [b"new"]


def test_a_subscription_keeps_a_topic_unless_it_may_go_caught_up(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    with_producer = client.create_producer(topic)
    with_producer.send_many(numbers(0, 3))
    with_producer.close()
    delete_if_unused(broker, topic)
    assert values(consumer, 2, acknowledge=True) == numbers(0, 2)
    stays(broker, topic)
    delete_if_unused(broker, topic, CAUGHT_UP)
    stays(broker, topic)
    consumer.close()
    broker.cluster.put_to_sleep(topic)  # with the dispatcher, which served until then
    assert not broker.cluster.remove_unused(topic)
    stays(broker, topic)
    last = client.subscribe(topic, "s", ConsumerType.Shared)
    assert values(last, 1, acknowledge=True) == numbers(2, 3)
    last.close()
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    removed(broker, topic)


def test_a_topic_goes_while_it_sleeps(broker: Broker, client: Client, tmp_path: Path) -> None:
    topic = broker.topic()
    client.create_producer(topic).close()
    delete_if_unused(broker, topic)
    wait_until(lambda: broker.cluster.put_to_sleep(topic), what="its sleep")
    due_ms = max(read_wake_times(tmp_path / "0" / "p").values())
    wait_until(lambda: time.time() * 1000 > due_ms, what="the time at which it is to be woken")
    removed(broker, topic)


def test_a_parked_producer_keeps_its_topic(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lossy carrier may take its time between two calls that wait.
    monkeypatch.setattr("pulsar_ray.broker.catalog.wanted_topics.WANTED_MS", 1_000)
    topic = broker.topic()
    producer = client.create_producer(topic)
    delete_if_unused(broker, topic)
    wait_until(lambda: broker.cluster.put_to_sleep(topic, with_clients=True), what="its sleep")
    assert not broker.cluster.remove_unused(topic)
    stays(broker, topic)
    assert producer.send(b"x").entry_id() == 0
    producer.close()
    goes(broker, topic)


def test_a_used_partition_keeps_all_others(broker: Broker, client: Client) -> None:
    topic = broker.topic(3)
    producer = client.create_producer(f"{topic}-partition-1")
    delete_if_unused(broker, topic)
    for index in (0, 2):
        client.create_producer(f"{topic}-partition-{index}").close()
    stays(broker, topic)
    assert producer.send(b"x").entry_id() == 0
    producer.close()
    goes(broker, topic)
    assert client.create_producer(topic).send(b"x") is not None


def test_whoever_has_just_asked_for_a_topic_finds_it(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_ray.broker.catalog.wanted_topics.WANTED_MS", 60_000)
    topic = broker.topic()
    client.create_producer(topic).close()
    delete_if_unused(broker, topic)
    stays(broker, topic)
    client.create_producer(topic).send(b"x")


def test_nothing_that_was_confirmed_is_lost_to_clients_that_come_and_go(broker: Broker) -> None:
    """A topic is deleted between its uses, and never under somebody who uses it."""
    topic = broker.topic()
    delete_if_unused(broker, topic)
    ends = time.monotonic() + 6
    errors: list[BaseException] = []

    def come_and_go(number: int) -> None:
        client = broker.client()
        try:
            while time.monotonic() < ends and not errors:
                consumer = client.subscribe(topic, f"s{number}", ConsumerType.Shared)
                producer = client.create_producer(topic)
                producer.send(b"%d" % number)
                while consumer.receive(20_000).data() != b"%d" % number:
                    pass
                producer.close()
                consumer.unsubscribe()
                consumer.close()
                time.sleep(1.5 + number / 10)
        except (PulsarException, Timeout) as error:
            if not isinstance(error, AlreadyClosed):
                errors.append(error)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
