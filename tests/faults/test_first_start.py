"""A partition whose process dies at its first start, before and behind the making of its directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import PulsarException
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import CONTROLLER
from tests.running_broker import Broker, partition_actor

DEADLINE_S = 60.0
SEND_TIMEOUT_MS = 3_000


def directory_of(broker: Broker, topic: str) -> Path:
    def path(actor: Any) -> str:
        return str(actor._directory)

    return Path(broker.run_in(partition_actor(topic), path))


def is_known(broker: Broker, topic: str) -> bool:
    full = TopicName.parse(topic).full

    def known(actor: Any) -> bool:
        return bool(actor._plane.catalog.partition(full).has_ledger)

    return bool(broker.run_in(CONTROLLER, known))


def lose(broker: Broker, topic: str, *, was_known: bool) -> None:
    """Kill a new partition's process, and take its directory away, as if it had never come so far."""
    wait_until(lambda: is_known(broker, topic), DEADLINE_S, "the word that the directory is made")
    full = TopicName.parse(topic).full
    if not was_known:

        def forget(actor: Any) -> None:
            sql = "UPDATE partition SET has_ledger = 0 WHERE name = ?"
            actor._plane.catalog._db.execute(sql, (full,))

        broker.run_in(CONTROLLER, forget)
    directory = directory_of(broker, topic)
    pid = broker.freeze(partition_actor(topic))
    shutil.rmtree(directory)
    broker.thaw(pid)
    broker.kill(partition_actor(topic))


def test_one_that_died_before_it_made_anything_makes_it_in_its_next_life(broker: Broker, topic: str) -> None:
    client = broker.client()
    client.create_producer(topic).close()
    lose(broker, topic, was_known=False)
    client.create_producer(topic).send(b"x")
    wait_until(lambda: is_known(broker, topic), DEADLINE_S, "the word that the directory is made")


def test_one_whose_directory_is_lost_serves_nothing(broker: Broker, topic: str) -> None:
    client = broker.client()
    client.create_producer(topic).close()
    lose(broker, topic, was_known=True)
    with pytest.raises(PulsarException, match="is not there"):
        client.create_producer(topic, send_timeout_millis=SEND_TIMEOUT_MS).send(b"x")
