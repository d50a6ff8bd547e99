"""One Ray with one broker for all tests of this package that do not start processes of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pulsar_ray import Client
from tests.running_broker import Broker

_topics = itertools.count(1)


class SharedBroker:
    """Started at its first use, and again where a module with a broker of its own has closed it."""

    def __init__(self, make_data_dir: Callable[[], Path]) -> None:
        self._make_data_dir = make_data_dir
        self._started: Broker | None = None

    def running(self) -> Broker:
        if self._started is None or not self._started.is_running:
            self._started = Broker(self._make_data_dir())
        return self._started

    def close(self) -> None:
        if self._started is not None:
            self._started.close()


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
