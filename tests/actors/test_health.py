"""Health and log of a real broker: what a probe, an administrator and a reader of the log see."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from pulsar_ray import Admin
from pulsar_ray.broker.health.finding import HealthReport
from pulsar_ray.broker.health.health_socket import ask_health
from pulsar_ray.cli.main import main
from pulsar_ray.client.client import Client
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.this_ray import running_names, session_directory
from tests.running_broker import Broker, partition_actor

ANSWER_S = 60.0
HOST = socket.gethostname()


@pytest.fixture
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(data_dir=str(broker.data_dir)) as admin:
        yield admin


def probed(broker: Broker) -> HealthReport:
    """Ask as a probe does, without Ray."""
    answer = ask_health(broker.data_dir, ANSWER_S)
    assert answer is not None
    assert answer["address"] == broker.address
    return HealthReport.of(answer["report"])


def logged(topic: str) -> list[str]:
    """The messages of the node's log that are about a topic."""
    lines = (session_directory() / "logs" / "pulsar_ray.log").read_text().splitlines()
    return [line.partition(": ")[2] for line in lines if f"topic={topic} " in line]


def test_a_partition_that_stands_still_is_named_with_its_host(
    broker: Broker, client: Client, topic: str
) -> None:
    client.create_producer(topic).send(b"first")
    wait_until(lambda: probed(broker).is_healthy, what="a healthy broker")
    pid = broker.pid(partition_actor(topic))
    os.kill(pid, signal.SIGSTOP)
    try:
        (found,) = probed(broker).errors
        assert (found.kind, found.subject, found.host) == ("partition", topic, HOST)
        assert found.reason == "does not answer"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: probed(broker).is_healthy, what="a healthy broker")


def test_stats_name_a_partition_that_stands_still_with_its_host(
    broker: Broker, client: Client, admin: Admin, topic: str
) -> None:
    producer = client.create_producer(topic)
    producer.send(b"first")
    producer.close()
    pid = broker.pid(partition_actor(topic))
    os.kill(pid, signal.SIGSTOP)
    try:
        refused = admin.topics.stats(topic)["refused"]
        assert refused == f"its process stands still and does not answer on {HOST}"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: admin.topics.stats(topic).get("msgInCounter") == 1, what="its answer")


def test_probe_administrator_and_command_agree_and_start_nobody(
    broker: Broker, client: Client, admin: Admin, topic: str
) -> None:
    _producer = client.create_producer(topic)
    asleep = f"{topic}-asleep"
    admin.topics.create_topic(asleep)
    wait_until(lambda: admin.health() == probed(broker), what="a broker at rest")
    ran = CliRunner().invoke(main, ["--data-dir", str(broker.data_dir), "health", "--json"])
    described: dict[str, Any] = json.loads(ran.stdout)
    assert ran.exit_code == 0
    assert described["healthy"]
    assert described["stores"] == 1
    assert asleep not in running_names()
    stats = admin.stats()
    assert stats["actors"][topic]["host"] == stats["stores"][0]["host"] == HOST
    assert admin.topics.stats(topic)["host"] == HOST
    broker.forget(asleep)


def test_no_broker_is_an_error_with_a_code_of_its_own(broker: Broker) -> None:
    arguments = ["--service-url", "local", "--data-dir", f"{broker.data_dir}-of-nobody", "health", "--json"]
    ran = CliRunner().invoke(main, arguments)
    assert ran.exit_code == 1
    (finding,) = json.loads(ran.stdout)["findings"]
    assert finding["kind"] == "broker"
    assert finding["remedy"]


def test_the_log_tells_the_story_of_a_topic_and_nothing_of_its_messages(
    broker: Broker, client: Client, admin: Admin
) -> None:
    topic = "persistent://public/default/told"
    producer = client.create_producer(topic)
    secret = b"a content of which no log may have a word"
    producer.send(secret)
    admin.topics.policies.set(topic, "max_producers", 9)
    os.kill(broker.pid(partition_actor(topic)), signal.SIGKILL)
    producer.send(secret)
    producer.close()
    admin.topics.delete(topic, force=True)
    lines = iter(logged(topic))
    for told in (
        r"made, with 0 partitions, in stores \w+",
        r"serves, new, within [\d.]+ s: 0 entries .*",
        rf"policies of {topic} made: .*\"max_producers\".*",
        r"serves, after its process ended, within [\d.]+ s: 1 entries in 1 ledgers .*",
        rf"policies of {topic} deleted",
        r"deleted by force, with 1 partitions",
    ):
        # Others may stand between them.
        assert any(re.fullmatch(told, line) for line in lines), told
    for path in (session_directory() / "logs").glob("*pulsar_ray*"):
        assert secret not in path.read_bytes()
