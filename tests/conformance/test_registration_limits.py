"""What clients register is bounded: names, properties, and the sum of both at each process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray import ConsumerType, MessageId, ProducerAccessMode
from pulsar_ray.client.client import Client
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError
from pulsar_ray.model import registrations
from pulsar_ray.model.registrations import MAX_NAME_BYTES
from tests.conformance.broker import EARLIEST, Broker, values
from tests.conformance.non_persistent import new_topic

MakeBroker = Callable[..., Broker]
SMALL = {"max_properties_bytes": 100, "max_properties_bytes_per_actor": 1000}
BAD_NAMES = (
    "n" * (MAX_NAME_BYTES + 1),
    "ä" * (MAX_NAME_BYTES // 2 + 1),
    "a\nb",
    "\x1b[2J",
    "a\x7fb",
    "a\x85b",
)
GOOD_NAMES = ("n" * MAX_NAME_BYTES, "ä ß/:", "\u4e2d \U0001f600")


def open_as(client: Client, topic: str, what: str, name: str, **options: Any) -> Any:
    """A producer, consumer or reader that has this name, or a subscription of it."""
    match what:
        case "producer":
            return client.create_producer(topic, producer_name=name, **options)
        case "consumer":
            return client.subscribe(topic, "s", consumer_name=name, **options)
        case "subscription":
            return client.subscribe(topic, name, **options)
    return client.create_reader(topic, MessageId.earliest, reader_name=name, **options)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("what", ["producer", "consumer", "subscription", "reader"])
def test_names_have_a_limit_and_no_control_characters(
    broker: Broker, client: Client, what: str, is_stored: bool
) -> None:
    topic = broker.topic() if is_stored else new_topic()
    for name in BAD_NAMES:
        with pytest.raises(InvalidConfiguration, match=r"choose (a shorter one|one without)"):
            open_as(client, topic, what, name)
    for name in GOOD_NAMES:
        open_as(client, topic, what, name).close()


def test_an_administrator_is_refused_the_same(broker: Broker) -> None:
    topic = broker.topic()
    with broker.admin() as admin:
        for name in BAD_NAMES:
            with pytest.raises(InvalidConfiguration, match=r"choose (a shorter one|one without)"):
                admin.topics.create_subscription(topic, name)
        assert admin.topics.subscriptions(topic) == []


def test_names_that_are_stored_stay_good(make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = make_broker(broker_deduplication_enabled=True)
    client, topic = broker.client(), broker.topic()
    old = "an\x07old\nname" + "x" * MAX_NAME_BYTES
    with monkeypatch.context() as before:
        for module in (registrations,):
            before.setattr(module, "MAX_NAME_BYTES", 1 << 20)
            before.setattr(module.unicodedata, "category", lambda _sign: "Ll")
        producer = client.create_producer(topic, producer_name=old)
        client.subscribe(topic, old).close()
        producer.send(b"one")
    broker.restart(kill=True)
    client = broker.client()
    again = client.create_producer(topic, producer_name=old)
    again.send(b"two")
    assert values(client.subscribe(topic, old, initial_position=EARLIEST), 2) == [b"one", b"two"]


@pytest.mark.parametrize("what", ["producer", "consumer"])
def test_a_set_of_properties_has_a_limit(make_broker: MakeBroker, what: str) -> None:
    broker = make_broker(**SMALL)
    client, topic = broker.client(), broker.topic()
    with pytest.raises(NotAllowedError, match=r"101 bytes.*max_properties_bytes allows 100.*raise"):
        open_as(client, topic, what, "n", properties={"k": "v" * 100})
    open_as(client, topic, what, "n", properties={"k": "v" * 99}).close()


@pytest.mark.parametrize("what", ["producer", "consumer"])
def test_all_together_have_a_limit_at_each_process(make_broker: MakeBroker, what: str) -> None:
    broker = make_broker(**SMALL)
    client, topic = broker.client(), broker.topic()
    kind: dict[str, Any] = {"consumer_type": ConsumerType.Shared} if what == "consumer" else {}
    properties = {"k": "v" * 99}
    kept = [open_as(client, topic, what, f"n{n}", properties=properties, **kind) for n in range(9)]
    with pytest.raises(NotAllowedError, match=r"max_properties_bytes_per_actor allows 1000: close some"):
        open_as(client, topic, what, "n9", properties=properties, **kind)
    kept.pop().close()
    open_as(client, topic, what, "another", properties={"k": "v" * 90}, **kind)


def test_subscriptions_together_have_a_limit_on_disk(make_broker: MakeBroker) -> None:
    broker = make_broker(**SMALL)
    client, topic = broker.client(), broker.topic()
    for number in range(9):
        client.subscribe(topic, f"s{number}", subscription_properties={"k": "v" * 99}).close()
    with pytest.raises(NotAllowedError, match=r"max_properties_bytes_per_actor allows 1000"):
        client.subscribe(topic, "s9", subscription_properties={"k": "v" * 99})
    client.subscribe(topic, "s9").close()
    with broker.admin() as admin:
        with pytest.raises(NotAllowedError, match=r"max_properties_bytes allows 100"):
            admin.topics.update_subscription_properties(topic, "s9", {"k": "v" * 100})
        with pytest.raises(NotAllowedError, match=r"max_properties_bytes_per_actor allows 1000"):
            admin.topics.update_subscription_properties(topic, "s9", {"k": "v" * 99})
        admin.topics.update_subscription_properties(topic, "s0", {})
        admin.topics.update_subscription_properties(topic, "s9", {"k": "v" * 99})


def test_who_is_refused_has_evicted_nobody(make_broker: MakeBroker) -> None:
    broker = make_broker(**SMALL)
    topic = broker.topic()
    holder = broker.client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(NotAllowedError, match="max_properties_bytes"):
        broker.client().create_producer(
            topic, properties={"k": "v" * 200}, access_mode=ProducerAccessMode.ExclusiveWithFencing
        )
    holder.send(b"still mine")
