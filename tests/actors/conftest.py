"""One Ray with one broker for all tests of this package that do not start processes of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pulsar_ray import Client
from tests.running_broker import Broker, SharedBroker

_topics = itertools.count(1)


@pytest.fixture(scope="package")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBroker]:
    shared = SharedBroker(lambda: tmp_path_factory.mktemp("broker"))
    try:
        yield shared
    finally:
        shared.close()


@pytest.fixture
def broker(shared_broker: SharedBroker) -> Broker:
    """The shared broker. A test kills what it likes of it and leaves it running."""
    return shared_broker.running()


@pytest.fixture
def client(broker: Broker) -> Client:
    return broker.client()


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    """A new topic; it goes with its actors."""
    name = f"persistent://public/default/actors-{next(_topics)}"
    yield name
    broker.forget(name)
