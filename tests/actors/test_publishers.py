"""Publishers of writes whose processes die or stand still, on a real Ray."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pyarrow as pa
import pytest
import ray

import pulsar_ray.data
from pulsar_ray import Admin, Client
from pulsar_ray.data import failing_actors
from pulsar_ray.data.writing.publishers import PUBLISHERS, Connection
from pulsar_ray.data.writing.publishing import Part, Sending
from pulsar_ray.errors import NotConnected, Timeout
from tests.running_broker import Broker


class Deadly:
    """Rows whose fetching ends the process."""

    def __call__(self) -> pa.Table:
        os._exit(1)


class Endless:
    """Rows whose fetching never ends."""

    def __call__(self) -> pa.Table:
        threading.Event().wait()


def idle_publishers() -> list[int]:
    """The processes of publishers that have nothing to do."""

    def pid(_: Any) -> int:
        return os.getpid()

    return [ray.get(actor.__ray_call__.remote(pid)) for actor in PUBLISHERS._idle.handles()]


@pytest.mark.long
def test_a_publisher_that_stands_still_is_replaced_and_its_part_stored_once(
    broker: Broker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_actors, "LOOK_AFTER_S", 1.0)
    monkeypatch.setattr(failing_actors, "ANSWER_WITHIN_S", 10.0)
    dataset = ray.data.from_items([{"value": f"{number}"} for number in range(50)], override_num_blocks=1)
    assert pulsar_ray.data.write(dataset, topic, name="q", batch_id=0, service_url=broker.address) == 50
    frozen = idle_publishers()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    assert pulsar_ray.data.write(dataset, topic, name="q", batch_id=1, service_url=broker.address) == 50
    assert set(idle_publishers()) - set(frozen)
    with Admin(broker.address) as admin:
        assert admin.topics.stats(topic)["msgInCounter"] == 100


def test_rows_that_end_every_publisher_end_the_write_with_an_error_that_says_so(
    broker: Broker, client: Client, topic: str
) -> None:
    client.create_producer(topic).close()
    part = Part(0, Deadly(), topic, Sending())
    with pytest.raises(NotConnected, match="died 3 times"):
        PUBLISHERS.publish([part], Connection(broker.address))


@pytest.mark.long
def test_rows_that_never_come_end_the_write_with_a_timeout_that_names_the_remedy(
    broker: Broker, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_actors, "_work_timeout_s", 2.0)
    client.create_producer(topic).close()
    part = Part(0, Endless(), topic, Sending())
    with pytest.raises(Timeout, match=r"sent a part of the rows took longer than 2 s .*set_work_timeout"):
        PUBLISHERS.publish([part], Connection(broker.address))
