"""The broker on a real Ray: wiring, names, pickled handles, what only processes can show."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from pulsar_ray import (
    Admin,
    Client,
    Consumer,
    ConsumerType,
    InitialPosition,
    MessageId,
    Producer,
    ProducerAccessMode,
)
from pulsar_ray.errors import (
    BrokerPersistenceError,
    ConsumerBusy,
    DataDirectoryInUse,
    NotAllowedError,
    ProducerFenced,
    PulsarException,
    Timeout,
    TopicNotFound,
    WrongNode,
)
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import CONTROLLER
from tests.running_broker import Broker, dispatcher_actor, partition_actor

WAIT_MS = 60_000
WAIT_S = 60.0
PROCESS_S = 240.0


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, end)]


def values(consumer: Consumer, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        found.append(message.data())
    return found


def stored(client: Client, topic: str) -> list[bytes]:
    """What a reader finds."""
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(WAIT_MS).data())
    reader.close()
    return found


def directory_of(broker: Broker, topic: str) -> Path:
    """Where an unpartitioned topic is stored."""
    (directory,) = [
        path
        for path in broker.data_dir.glob("**/p/*")
        if any(topic.encode() in log.read_bytes() for log in path.glob("manifest-*"))
    ]
    return directory


@pytest.mark.parametrize(
    ("transport", "carrier"), [("auto", "socket"), ("socket", "socket"), ("tcp", "tcp"), ("ray", "ray")]
)
def test_every_transport_carries(broker: Broker, topic: str, transport: str, carrier: str) -> None:
    client = broker.client(transport=transport)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 50):
        producer.send_async(value, None)
    producer.flush()
    assert values(consumer, 50) == numbers(0, 50)
    sessions = broker.stats(partition_actor(topic))["sessions"]
    clients = [session for session in sessions if not session["clientId"].startswith("follower-")]
    assert [session["carrier"] for session in clients] == [carrier]


def test_actors_have_names_that_read_well(broker: Broker, client: Client, topic: str) -> None:
    Admin(broker.address).topics.create_partitioned_topic(topic, 2)
    _opened = (
        client.create_producer(topic),
        client.subscribe(topic, "billing"),
        client.create_reader(topic, MessageId.latest),
    )
    state: Any = ray._private.state
    classes = {actor["Name"]: actor["ActorClassName"] for actor in state.actors().values()}
    assert classes[CONTROLLER] == "Controller"
    assert classes[broker.store()] == "StoreActor"
    for index in range(2):
        partition = f"{topic}-partition-{index}"
        assert classes[partition] == "TopicPartition"
        assert classes[f"{partition} -> billing"] == "SubscriptionDispatcher"
        assert classes[f"{partition} => readers"] == "SubscriptionDispatcher"


@ray.remote(num_cpus=0)
def produce(producer: Producer, sent: list[bytes]) -> str:
    for value in sent:
        producer.send(value)
    return producer.producer_name()


@ray.remote(num_cpus=0)
class Counting:
    """Consumes with a handle from elsewhere."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def values(self, count: int) -> list[bytes]:
        return values(self._consumer, count)


def test_actors_have_no_more_threads_than_a_machine_can_bear(
    broker: Broker, client: Client, topic: str
) -> None:
    client.create_producer(topic)
    with Admin(broker.address) as admin:
        pid = admin.topics.stats(topic)["pid"]
    assert psutil.Process(pid).num_threads() < 400


def test_handles_work_in_tasks_and_actors(client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    counting: Any = Counting.remote(consumer)  # type: ignore[attr-defined]
    elsewhere = ray.get(produce.remote(producer, numbers(0, 10)), timeout=WAIT_S)
    assert elsewhere != producer.producer_name()
    consumer.close()
    assert sorted(ray.get(counting.values.remote(10), timeout=WAIT_S)) == numbers(0, 10)
    ray.kill(counting)


def test_an_exclusive_consumer_that_was_pickled_finds_its_place_taken(client: Client, topic: str) -> None:
    holder = client.subscribe(topic, "x")
    refused: Any = Counting.remote(holder)  # type: ignore[attr-defined]
    with pytest.raises(ConsumerBusy):
        ray.get(refused.values.remote(1), timeout=WAIT_S)
    ray.kill(refused)


def test_a_pickled_producer_takes_the_topic_for_itself_where_it_is_used(client: Client, topic: str) -> None:
    holder = client.create_producer(topic, "leader", access_mode=ProducerAccessMode.Exclusive)
    holder.send(b"0")
    with pytest.raises(ProducerFenced):
        ray.get(produce.remote(holder, [b"x"]), timeout=WAIT_S)
    holder.close()
    assert ray.get(produce.remote(holder, [b"1"]), timeout=WAIT_S) == "leader"
    taker = client.create_producer(topic, access_mode=ProducerAccessMode.ExclusiveWithFencing)
    ray.get(produce.remote(taker, [b"2"]), timeout=WAIT_S)
    with pytest.raises(ProducerFenced):
        taker.send(b"x")


def test_what_a_killed_process_held_is_free_at_once(broker: Broker, client: Client, topic: str) -> None:
    client.create_producer(topic).send(b"x")
    code = (
        "import sys, os, signal, pulsar_ray\n"
        "client = pulsar_ray.Client(sys.argv[1], data_dir=sys.argv[2])\n"
        "earliest = pulsar_ray.InitialPosition.Earliest\n"
        "consumer = client.subscribe(sys.argv[3], 's', initial_position=earliest)\n"
        "consumer.receive(60000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = [sys.executable, "-c", code, broker.address, str(broker.data_dir), topic]
    assert subprocess.run(arguments, timeout=PROCESS_S, check=False).returncode == -signal.SIGKILL
    assert values(client.subscribe(topic, "s", initial_position=InitialPosition.Earliest), 1) == [b"x"]


@pytest.mark.parametrize("transport", ["auto", "ray"])
def test_a_program_that_closed_its_client_may_leave_ray(broker: Broker, topic: str, transport: str) -> None:
    """Even while a silent actor is reported and attached to again: Ray would end it with exit code 1."""
    code = (
        "import sys, threading, ray, pulsar_ray\n"
        "from pulsar_ray.transport.ray_cluster import RayCluster\n"
        "is_silent, report = threading.Event(), RayCluster.report_silent\n"
        "def reporting(*args):\n"
        "    is_silent.set()\n"
        "    report(*args)\n"
        "RayCluster.report_silent = reporting\n"
        "client = pulsar_ray.Client(sys.argv[1], data_dir=sys.argv[2], transport=sys.argv[4],"
        " operation_timeout_seconds=20)\n"
        "producer = client.create_producer(sys.argv[3], send_timeout_millis=1000)\n"
        "producer.send(b'x')\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "producer.send_async(b'y', None)\n"
        "assert is_silent.wait(60)\n"
        "client.operation_timeout_s = 0.1\n"
        "try:\n"
        "    client.close()\n"
        "except pulsar_ray.errors.PulsarException:\n"
        "    pass\n"
        "ray.shutdown()\n"
        "sys.exit(7)\n"
    )
    arguments = [sys.executable, "-c", code, broker.address, str(broker.data_dir), topic, transport]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        pid = broker.freeze(partition_actor(topic))
        try:
            _, errors = program.communicate("go\n", timeout=PROCESS_S)
        finally:
            broker.thaw(pid)
            program.kill()
    assert program.returncode == 7, errors
    assert "Unhandled" not in errors


@pytest.mark.long
def test_actors_that_ray_will_not_restart_are_created_anew(
    broker: Broker, client: Client, topic: str
) -> None:
    """As after the loss of a node, or after somebody's `ray.kill`."""
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"before")
    assert values(consumer, 1) == [b"before"]
    for actor in (partition_actor(topic), dispatcher_actor(topic, "s"), broker.store()):
        pid = broker.pid(actor)
        ray.kill(broker.handle(actor), no_restart=True)
        broker.wait_for_other(actor, pid)
    producer.send(b"after")
    assert values(consumer, 1) == [b"after"]
    assert stored(client, topic) == [b"before", b"after"]
    with Admin(broker.address) as admin:
        assert [store["path"] for store in admin.stats()["stores"]] == [str(broker.data_dir)]


def test_a_lost_ledger_directory_is_wrong_node_until_it_is_back(broker: Broker, topic: str) -> None:
    client = broker.client()
    client.create_producer(topic).send(b"x")
    actor = partition_actor(topic)
    directory = directory_of(broker, topic)
    # It stands still meanwhile, so that it cannot notice before it dies.
    pid = broker.freeze(actor)
    lost = directory.rename(broker.data_dir / "lost")
    os.kill(pid, signal.SIGKILL)
    refusing = broker.wait_for_other(actor, pid)
    with pytest.raises(WrongNode):
        broker.client(operation_timeout_seconds=3).create_producer(topic)
    assert "WrongNode" in broker.stats(actor)["refused"]
    assert not directory.exists()
    shutil.move(lost, directory)
    broker.kill(actor)
    broker.wait_for_other(actor, refusing)
    assert stored(client, topic) == [b"x"]


def test_a_subscription_that_the_disk_did_not_take_can_be_made_once_it_does(
    broker: Broker, client: Client, topic: str
) -> None:
    client.subscribe(topic, "first").close()
    (cursor,) = (directory_of(broker, topic) / "s").iterdir()
    in_the_way = cursor.with_name(f"{int(cursor.name) + 1}.new")
    in_the_way.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(BrokerPersistenceError, match=r"see to the disk"):
            client.subscribe(topic, "second")
    in_the_way.unlink()
    consumer = client.subscribe(topic, "second")
    client.create_producer(topic).send(b"x")
    assert values(consumer, 1) == [b"x"]


@pytest.mark.long
def test_a_second_broker_on_the_same_directory_is_refused(broker: Broker) -> None:
    code = (
        "import sys, logging, ray, pulsar_ray\n"
        "ray.init(address='local', num_cpus=1, include_dashboard=False, log_to_driver=False,"
        " logging_level=logging.ERROR, object_store_memory=128 << 20)\n"
        "try:\n"
        "    pulsar_ray.Client(data_dir=sys.argv[1]).create_producer('first')\n"
        "except pulsar_ray.errors.DataDirectoryInUse as error:\n"
        "    print(repr(error))\n"
        "    sys.exit(7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(broker.data_dir)],
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert DataDirectoryInUse.__name__ in done.stdout
    assert str(broker.data_dir) in done.stdout


def test_a_remote_ray_client_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="ray job submit"):
        Client("ray://127.0.0.1:10001")


def test_topics_are_created_listed_and_deleted(broker: Broker, client: Client) -> None:
    # Names of its own: a second try finds what a first one has left.
    made, plain = (f"persistent://public/default/{name}-{secrets.token_hex(4)}" for name in ("made", "plain"))
    admin = Admin(broker.address)
    admin.topics.create_partitioned_topic(made, 3)
    admin.topics.create_topic(plain)
    for again in (made, plain):
        with pytest.raises(NotAllowedError):
            admin.topics.create_topic(again)
    partitions = admin.topics.partitions()
    assert partitions[made] == 3
    assert partitions[plain] == 0
    producer = client.create_producer(plain)
    producer.send(b"x")
    with pytest.raises(NotAllowedError, match="connected"):
        admin.topics.delete(plain)
    producer.close()
    admin.topics.delete(plain)
    with pytest.raises(TopicNotFound):
        admin.topics.delete(plain)
    fresh = client.create_producer(plain)
    assert fresh.send(b"fresh").entry_id() == 0
    assert stored(client, plain) == [b"fresh"]
    fresh.close()
    admin.topics.delete(plain, force=True)
    admin.topics.delete(made)
    assert made not in " ".join(admin.topics.list())
    admin.close()


def test_an_unsubscribed_name_starts_afresh(client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"old")
    consumer.unsubscribe()
    again = client.subscribe(topic, "s")
    producer.send(b"new")
    assert values(again, 1) == [b"new"]


def test_non_persistent_topics_live_in_their_actors(broker: Broker, client: Client) -> None:
    admin = Admin(broker.address)
    topic = f"non-persistent://public/default/passing-{secrets.token_hex(4)}"
    consumer = client.subscribe(topic, "s")
    reader = client.create_reader(topic, MessageId.latest)
    producer = client.create_producer(topic)
    for value in numbers(0, 50):
        assert producer.send(value) == MessageId(-1, -1, -1, -1)
    assert values(consumer, 50) == numbers(0, 50)
    assert [reader.read_next(WAIT_MS).data() for _ in range(50)] == numbers(0, 50)
    consumer.close()
    producer.send(b"to nobody")
    stats = admin.topics.stats(topic)
    subscription = stats["subscriptions"]["s"]
    assert (subscription["isDurable"], subscription["msgDropCounter"]) == (False, 1), stats
    assert admin.topics.get_partitions(topic) == 0
    logs = broker.data_dir.glob("**/p/*/manifest-*")
    assert not any(topic.encode() in log.read_bytes() for log in logs)
    consumer = client.subscribe(topic, "s")
    for actor in (partition_actor(topic), dispatcher_actor(topic, "s"), CONTROLLER):
        killed = broker.kill(actor)
        broker.wait_for_other(actor, killed)

        def flows() -> bool:
            producer.send(b"again")
            try:
                return consumer.receive(200).data() == b"again"
            except Timeout:
                return False

        wait_until(flows, WAIT_S, f"messages after the death of {actor}")
    assert topic in admin.topics.list()
    admin.topics.delete(topic, force=True)

    def is_refused() -> bool:
        try:
            producer.send(b"answered as long as the actor is there")
        except PulsarException:
            return True
        return False

    wait_until(is_refused, WAIT_S, "the end of a deleted topic")
    assert topic not in admin.topics.list(), "its own clients do not bring it back"
    admin.topics.create_partitioned_topic(topic, 2)
    assert len(client.get_topic_partitions(topic)) == 2
    admin.topics.delete(topic)
    admin.close()
