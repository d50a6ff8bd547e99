"""Compaction on a Ray: its actor and its partition are killed in the middle."""

from __future__ import annotations

import contextlib

import pytest
import ray

from pulsar_ray import Client, MessageId
from pulsar_ray.admin import Admin
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import compactor_name
from tests.running_broker import Broker, partition_actor

MESSAGES = 20_000
KEYS = 500
DEADLINE_S = 90.0


def latest(client: Client, topic: str) -> dict[str, bytes]:
    """What a reader of the compacted topic gets, each key once."""
    found: dict[str, bytes] = {}
    with client.create_reader(topic, MessageId.earliest, is_read_compacted=True) as reader:
        while reader.has_message_available():
            message = reader.read_next(30_000)
            assert message.partition_key() not in found
            found[message.partition_key()] = message.data()
    return found


def is_over(admin: Admin, topic: str) -> bool:
    return bool(admin.topics.compaction_status(topic)["status"] != "RUNNING")


@pytest.mark.parametrize("victim", ["partition", pytest.param("compactor", marks=pytest.mark.long)])
def test_a_compaction_that_is_killed_changes_nothing_and_the_next_one_works(
    broker: Broker, client: Client, topic: str, victim: str
) -> None:
    producer = client.create_producer(topic, block_if_queue_full=True)
    name = compactor_name(TopicName.parse(topic).full) if victim == "compactor" else partition_actor(topic)
    former: dict[str, bytes] = {}
    with Admin(broker.address) as admin:
        for turn in range(3):
            values = {f"k{number % KEYS}": b"%d-%d" % (turn, number) for number in range(MESSAGES)}
            for number in range(MESSAGES):
                producer.send_async(b"%d-%d" % (turn, number), None, partition_key=f"k{number % KEYS}")
            producer.flush()
            admin.topics.compact(topic)
            # It may have ended before it is found.
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                broker.kill(name)
            wait_until(lambda: is_over(admin, topic), DEADLINE_S, "the end of the compaction")
            admin.topics.compact(topic)
            wait_until(lambda: is_over(admin, topic), DEADLINE_S, "the end of the next compaction")
            assert admin.topics.compaction_status(topic)["status"] == "SUCCESS"
            assert latest(client, topic) == values != former
            former = values
