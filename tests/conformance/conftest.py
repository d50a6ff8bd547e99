"""Every test here runs over every kind of carrier, on a broker of its own without Ray."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.catalog import parked_dispatchers
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import Timeout
from pulsar_ray.transport import ray_connection
from tests.conformance.broker import QUIET_MS, TRANSPORTS, Broker
from tests.conformance.running_actors import needs_running_actors

OVER_EVERY_CARRIER = (
    "test_broker_gone",
    "test_bulk",
    "test_carriers",
    "test_choosing_carriers",
    "test_chunks",
    "test_every_form",
    "test_malformed_requests",
    "test_policies",
    "test_publishing",
    "test_receiving",
    "test_sessions",
    "test_stats",
)
"""Modules that `make test` runs over TCP and the faultless tunnel, too; the others do in `make test-all`.

A lane over TCP connects in another way, and has no large packets through memory; all else is the same code.
Without faults the tunnel only brings together what others show: that calls may be lost, and that clients
on the node read files.
"""

OVER_THE_LOSSY_TUNNEL = (
    *OVER_EVERY_CARRIER,
    "test_access_modes",
    "test_acknowledging",
    "test_batches_in_part",
    "test_dead_letters",
    "test_deduplication",
    "test_dying_dispatchers",
    "test_held_back",
    "test_key_order",
    "test_key_shared",
    "test_reading_again",
    "test_redelivery",
    "test_repeated_acks",
    "test_seeking",
    "test_seeks_of_others",
)
"""Modules that `make test` runs over the tunnel that loses calls, too; the others do in `make test-all`.

These are about what repeated, late and lost requests may spoil: order, places, counts, numbers in a session.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is None or item.path.parent != Path(__file__).parent:
            continue
        transport, module = callspec.params.get("transport"), item.path.stem
        is_between = transport in ("tcp", "ray") and module not in OVER_EVERY_CARRIER
        if is_between or (transport == "lossy" and module not in OVER_THE_LOSSY_TUNNEL):
            item.add_marker(pytest.mark.long)


@pytest.fixture
def patience(request: pytest.FixtureRequest) -> int:
    """How many times as long as usual a short delay is: 1, and more in each further try.

    A test whose delay has passed before the test came to look saw a busy machine, not a broker's fault: it is
    tried again with time enough.
    """
    tries: int = getattr(request.node, "execution_count", 1)
    return int(3 ** (tries - 1))


@pytest.fixture(params=[*TRANSPORTS, pytest.param("sleepy", marks=pytest.mark.long)])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "sleepy" and needs_running_actors(request.node):
        pytest.skip("it looks at running actors, which leave all the time")
    return name


@pytest.fixture(autouse=True)
def _clients_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions wait less long for clients that were signalled, and of whom none may come back."""
    monkeypatch.setattr(parked_dispatchers, "SIGNAL_MS", 5_000)


@pytest.fixture
def make_broker(transport: str, tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Makes a broker with settings that are not the default ones."""
    brokers: list[Broker] = []

    def make(**settings: Any) -> Broker:
        seed = random.randrange(1 << 32)
        print(f"seed of the tunnel's faults: {seed}", file=sys.stderr)
        brokers.append(Broker(tmp_path / str(len(brokers)), transport, seed, **settings))
        return brokers[-1]

    yield make
    for broker in brokers:
        broker.close()


@pytest.fixture
def broker(make_broker: Callable[..., Broker]) -> Broker:
    return make_broker()


@pytest.fixture
def client(broker: Broker) -> Client:
    return broker.client()


@pytest.fixture
def carriers_are_kept(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is lost with a carrier that is given up: bad luck must not decide a test."""
    if transport == "lossy":
        monkeypatch.setattr(ray_connection, "LOST_CALLS", 1_000_000)


@pytest.fixture
def assert_quiet() -> Callable[[Consumer], None]:
    """Asserts that nothing (more) comes."""

    def check(consumer: Consumer) -> None:
        try:
            message = consumer.receive(QUIET_MS)
        except Timeout:
            return
        pytest.fail(f"came too: {message.data()!r} {message.message_id()} r{message.redelivery_count()}")

    return check
