"""Actors that nobody uses leave, and come back when somebody does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import ray

from pulsar_ray import Client, Consumer, ConsumerType, InitialPosition, Message
from pulsar_ray.admin import Admin
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import CONTROLLER
from pulsar_ray.transport.this_ray import running_names
from tests.running_broker import Broker, dispatcher_actor, partition_actor

DEADLINE_S = 60.0
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    started = Broker(
        tmp_path_factory.mktemp("broker"), idle_actor_passivation_seconds=0.5, reattach_grace_seconds=300
    )
    try:
        yield started
    finally:
        started.close()


def actors_of(topic: str) -> list[str]:
    return [name for name in running_names() if topic in name]


def wait_asleep(topic: str) -> None:
    wait_until(lambda: not actors_of(topic), DEADLINE_S, f"the sleep of {topic}")


def test_a_topic_that_was_used_sleeps_and_wakes(client: Client, topic: str) -> None:
    consumer = subscribe(client, topic)
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(b"%d" % number)
    for _ in range(6):
        message = consumer.receive(WAIT_MS)
        if int(message.data()) % 2:
            consumer.acknowledge(message)
        else:
            consumer.negative_acknowledge(message)
    again = [consumer.receive(WAIT_MS) for _ in range(3)]
    assert [message.redelivery_count() for message in again] == [1, 1, 1]
    consumer.close()
    producer.close()
    wait_asleep(topic)
    client.create_producer(topic).send(b"6")
    consumer = subscribe(client, topic)
    got = {message.data(): message.redelivery_count() for message in receive(consumer, 4)}
    assert sorted(got) == [b"0", b"2", b"4", b"6"]
    assert got.pop(b"6") == 0
    assert all(got.values())


def subscribe(client: Client, topic: str) -> Consumer:
    return client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=10,
    )


def receive(consumer: Consumer, count: int) -> list[Message]:
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def test_time_wakes_a_sleeping_partition(client: Client, topic: str, broker: Broker) -> None:
    before = set(broker.data_dir.glob("p/*/wake-at"))
    producer = client.create_producer(topic)
    producer.send(b"nobody has subscribed to it")
    producer.close()
    wait_asleep(topic)
    (note,) = set(broker.data_dir.glob("p/*/wake-at")) - before
    written = note.stat().st_mtime_ns
    store = broker.handle(broker.store())

    def is_looked_at() -> bool:
        # As if the time had come; a store that was not asked yet reads the notes.
        ray.get(store.call_part.remote("sleeping", "slept", {int(note.parent.name): 1}))
        return note.stat().st_mtime_ns != written

    wait_until(is_looked_at, DEADLINE_S, "a look at what is due")
    wait_asleep(topic)


@pytest.mark.parametrize(
    ("policy", "value"),
    [
        ("message_ttl", {"message_ttl": 1}),
        pytest.param(
            "backlog_quota", {"limit_size": 1, "policy": "consumer_backlog_eviction"}, marks=pytest.mark.long
        ),
    ],
)
def test_a_new_policy_reaches_messages_of_a_topic_that_sleeps(
    client: Client, topic: str, broker: Broker, policy: str, value: Any
) -> None:
    subscribe(client, topic).close()
    with client.create_producer(topic) as producer:
        producer.send(b"in the backlog")
    wait_asleep(topic)
    with Admin(broker.address) as admin:
        assert admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 1
        admin.topics.policies.set(topic, policy, **value)

        def is_gone() -> bool:
            return bool(admin.topics.stats(topic)["subscriptions"]["s"]["msgBacklog"] == 0)

        wait_until(is_gone, DEADLINE_S, "nobody uses it, and its message goes")


@pytest.mark.long
def test_a_restarted_controller_looks_for_what_is_due(client: Client, topic: str, broker: Broker) -> None:
    before = set(broker.data_dir.glob("p/*/wake-at"))
    with client.create_producer(topic) as producer:
        producer.send(b"nobody has subscribed to it")
    wait_asleep(topic)
    (note,) = set(broker.data_dir.glob("p/*/wake-at")) - before
    note.write_text("1")
    broker.kill(CONTROLLER)
    # Nobody asks the new one for anything.
    wait_until(lambda: note.read_text() not in ("0", "1"), DEADLINE_S, "a look at what is due")


@pytest.mark.long
def test_one_that_nobody_ends_comes_back(client: Client, topic: str, broker: Broker) -> None:
    """As when the controller dies between an actor's farewell and its end."""
    consumer = subscribe(client, topic)
    client.create_producer(topic).send(b"0")
    consumer.acknowledge(receive(consumer, 1)[0])
    partition, dispatcher = partition_actor(topic), dispatcher_actor(topic, "s")
    former = broker.pid(partition)
    for name in (dispatcher, partition):
        handle = broker.handle(name)
        wait_until(partial(_retires, handle), DEADLINE_S, f"the farewell of {name}")
    client.create_producer(topic).send(b"1")
    assert broker.pid(partition) != former
    assert [message.data() for message in receive(consumer, 1)] == [b"1"]


def test_actors_are_found_by_a_process_whose_ray_remembers_their_predecessors(
    client: Client, topic: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"0")
    former, get_actor = {name: broker.handle(name) for name in actors_of(topic)}, ray.get_actor
    wait_asleep(topic)
    monkeypatch.setattr(ray, "get_actor", lambda name, **of: former.get(name) or get_actor(name, **of))
    producer.send(b"1")
    assert [message.data() for message in receive(subscribe(client, topic), 2)] == [b"0", b"1"]


PARKED = """
import sys, pulsar_ray
consumer = pulsar_ray.Client(sys.argv[1]).subscribe(sys.argv[2], "s")
print("subscribed", flush=True)
sys.stdin.read()
"""


def test_a_process_that_dies_while_its_consumer_is_parked_leaves_the_place(
    client: Client, topic: str, broker: Broker
) -> None:
    command = [sys.executable, "-c", PARKED, broker.address, topic]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"subscribed\n"
        wait_asleep(topic)
        wait_until(lambda: broker.run_in(CONTROLLER, _parked_at, topic), DEADLINE_S, "a call that waits")
        process.kill()
    consumer = client.subscribe(topic, "s", ConsumerType.Exclusive)
    client.create_producer(topic).send(b"0")
    assert [message.data() for message in receive(consumer, 1)] == [b"0"]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_thousand_topics_cost_what_those_in_use_do(client: Client, topic: str, broker: Broker) -> None:
    names = [topic, *(f"{topic}-{number}" for number in range(9_999))]
    used = names[::1000]
    with Admin(broker.address) as admin:
        for name in names:
            admin.topics.create_topic(name)
        assert len([name for name in admin.topics.list() if name.startswith(topic)]) == 10_000
        assert not actors_of(topic)
        consumers = {name: client.subscribe(name, "s", ConsumerType.Exclusive) for name in used}
        for name in used:
            with client.create_producer(name) as producer:
                producer.send(name.encode())
        for name, consumer in consumers.items():
            (message,) = receive(consumer, 1)
            assert message.data() == name.encode()
            consumer.acknowledge(message)
        wait_asleep(topic)
        assert all(consumer.is_connected() for consumer in consumers.values())
        assert all(admin.topics.stats(name)["storageSize"] == 0 for name in names[:100])
        assert not actors_of(topic)
        with broker.client().create_producer(used[5]) as producer:
            producer.send(b"again")
        (message,) = receive(consumers[used[5]], 1)
        assert message.data() == b"again"
        assert {name for name in used if actors_of(f"{name} ")} == {used[5]}


def _parked_at(controller: Any, topic: str) -> int:
    count: int = controller._plane.passivation.parked_clients.count(TopicName.parse(topic).full)
    return count


def _retires(handle: Any) -> bool:
    return ray.get(handle.retire.remote(0, True)) is not None


@pytest.mark.long
def test_a_topic_that_nobody_uses_is_deleted_while_it_sleeps(
    broker: Broker, client: Client, topic: str
) -> None:
    full, kept = TopicName.parse(topic).full, f"{topic}-kept"
    client.create_producer(topic).close()
    parked = client.create_producer(kept)
    parked.send(b"first")
    with Admin(broker.address) as admin:
        topics = admin.topics
        for name in (topic, kept):
            topics.policies.set(
                name, "inactive_topic_policies", delete_while_inactive=True, max_inactive_duration_seconds=1
            )
        assert full in topics.list("public/default")
        wait_until(lambda: full not in topics.list("public/default"), 180.0, "its deletion")
        assert TopicName.parse(kept).full in topics.list("public/default"), "its producer is open"
    parked.send(b"second")
    assert client.create_producer(topic).send(b"new").entry_id() == 0
