"""One Ray with one broker per module of fault tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.faults.client_process import ClientSpec
from tests.faults.processes import ClientProcess
from tests.faults.reading import numbered, subscribe
from tests.running_broker import Broker, SharedBroker

LONG_LEASE_S = 3600.0
SMALL_LEDGER_ENTRIES = 400
HELD_MESSAGES = 100
DEADLINE_S = 60.0
_topics = itertools.count(1)


def _keeping_broker(make_data_dir: pytest.TempPathFactory, lease_s: float) -> SharedBroker:
    """A broker that keeps every message and rolls its ledgers over often."""
    return SharedBroker(
        lambda: make_data_dir.mktemp("broker"),
        session_lease_seconds=lease_s,
        default_retention_time_in_minutes=-1,
        default_retention_size_in_mb=-1,
        managed_ledger_max_entries_per_ledger=SMALL_LEDGER_ENTRIES,
        managed_ledger_min_ledger_rollover_time_minutes=0,
        new_topic_retention_seconds=0,
    )


@pytest.fixture(scope="package")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBroker]:
    """One Ray with one broker for all modules that choose no lease of their own."""
    shared = _keeping_broker(tmp_path_factory, LONG_LEASE_S)
    try:
        yield shared
    finally:
        shared.close()


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, shared_broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    """A broker whose actors and clients die; a test leaves it running.

    A dead client must be noticed without its lease, so that is long unless the module's LEASE_S says else.
    """
    lease_s = getattr(request.module, "LEASE_S", None)
    if lease_s is None:
        yield shared_broker.running()
        return
    own = _keeping_broker(tmp_path_factory, lease_s)
    try:
        yield own.running()
    finally:
        own.close()


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    """A new topic; it goes with its actors."""
    name = f"faults-{next(_topics)}"
    yield name
    broker.forget(name)


@pytest.fixture
def holder(broker: Broker, topic: str, carrier: str, tmp_path: Path) -> Iterator[ClientProcess]:
    """A Shared consumer in a process of its own that was given 100 messages and acknowledges none."""
    client = broker.client()
    subscribe(client, topic, consumer_type=ConsumerType.Shared).close()
    client.create_producer(topic).send_many(numbered(HELD_MESSAGES))
    spec = ClientSpec(broker.address, "holding", topic, "holder", "", carrier, 1, subscription="sub")
    process = ClientProcess(spec, tmp_path)
    process.wait_started()
    wait_until(lambda: len(process.received()) == HELD_MESSAGES, DEADLINE_S, "all messages at the holder")
    yield process
    process.thaw()
    process.kill()
