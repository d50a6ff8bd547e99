"""Refusals of producers and consumers name topic and subscription, which a list or pattern leaves open."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.options.policies import ConsumerKeySharedPolicy
from pulsar_ray.errors import ConsumerBusy, ProducerBusy, PulsarException
from pulsar_ray.model.enums import ConsumerType, KeySharedMode, ProducerAccessMode
from tests.conformance.broker import Broker


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


@pytest.fixture
def taken(broker: Broker) -> str:
    """A topic of whose subscription `s` somebody is the exclusive consumer."""
    broker.client().subscribe("taken", "s")
    broker.client().create_producer("free").close()
    return "taken"


@pytest.mark.parametrize(
    "topics", [["free", "taken"], re.compile("persistent://public/default/(free|taken)")]
)
def test_an_exclusive_place_that_is_taken(
    taken: str, client: Client, topics: list[str] | re.Pattern[str]
) -> None:
    with pytest.raises(ConsumerBusy, match=rf"{full(taken)}, subscription 's': exclusive consumer"):
        client.subscribe(topics, "s")


def test_another_type(taken: str, client: Client) -> None:
    with pytest.raises(ConsumerBusy, match=rf"{full(taken)}, subscription 's': .*Shared is refused"):
        client.subscribe(["free", taken], "s", ConsumerType.Shared)


def test_another_key_shared_mode(broker: Broker, client: Client) -> None:
    broker.client().subscribe("keyed", "s", ConsumerType.KeyShared)
    sticky = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(0, 65535)])
    with pytest.raises(ConsumerBusy, match=rf"{full('keyed')}, subscription 's'"):
        client.subscribe(["free", "keyed"], "s", ConsumerType.KeyShared, key_shared_policy=sticky)


@pytest.mark.parametrize("limit", ["max_consumers_per_topic", "max_consumers_per_subscription"])
def test_a_consumer_too_many(make_broker: Callable[..., Broker], limit: str) -> None:
    broker = make_broker(**{limit: 1})
    broker.client().subscribe("full", "s", ConsumerType.Shared)
    with pytest.raises(ConsumerBusy, match=r"subscription 's'.*policy max_consumers") as refused:
        broker.client().subscribe(["free", "full"], "s", ConsumerType.Shared)
    assert full("full") in str(refused.value)


def test_a_producer_name_that_is_taken(broker: Broker, client: Client) -> None:
    broker.client().create_producer("taken", "mine")
    with pytest.raises(ProducerBusy, match=rf"{full('taken')}: a producer named 'mine'"):
        client.create_producer("taken", "mine")


@pytest.mark.parametrize("mode", [ProducerAccessMode.Shared, ProducerAccessMode.Exclusive])
def test_a_topic_that_somebody_has_alone(broker: Broker, client: Client, mode: ProducerAccessMode) -> None:
    broker.client().create_producer("alone", access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(PulsarException, match=full("alone")):
        client.create_producer("alone", access_mode=mode)
