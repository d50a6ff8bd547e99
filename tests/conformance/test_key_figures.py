"""The figures and stats of Pulsar's documentation on Key_Shared, drawn by the broker, over every carrier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerKeySharedPolicy
from pulsar_ray.errors import ConsumerAssignError
from pulsar_ray.model.enums import KeySharedMode
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker, receive
from tests.conformance.keyed import DIGITS, keys_of, publish, subscribe

QUARTER = 16_384
COLUMN = 9
"""Characters of a figure per quarter of the slots."""
ORDER = "Order-3459134"


def consumers(broker: Broker, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.admin().topics.stats(topic)["subscriptions"]["s"]["consumers"]
    return found


def figure(broker: Broker, topic: str) -> str:
    """The slots from 0 to 65,536, and whose they are."""
    ranges = sorted(
        (first, last, one["consumerName"])
        for one in consumers(broker, topic)
        for first, last in one["keyHashRangeArrays"]
    )
    drawn = ""
    for first, last, name in ranges:
        assert first % QUARTER == (last + 1) % QUARTER == 0
        drawn += "|" + f" {name} ".center((last + 1 - first) // QUARTER * COLUMN - 1, "-")
    return drawn + "|"


def assert_drawn(broker: Broker, topic: str, expected: str) -> None:
    wait_until(lambda: figure(broker, topic) == expected, what=expected)


def test_ranges_are_halved_by_who_comes_and_given_to_the_right_by_who_goes(broker: Broker) -> None:
    topic = broker.topic()
    grown = [
        "|---------------- C1 ---------------|",
        "|------- C2 ------|------- C1 ------|",
        "|-- C3 --|-- C2 --|------- C1 ------|",
        "|-- C3 --|-- C2 --|-- C4 --|-- C1 --|",
    ]
    present: dict[str, Consumer] = {}
    for number, expected in enumerate(grown, start=1):
        name = f"C{number}"
        present[name] = subscribe(broker.client(), topic, name)
        assert_drawn(broker, topic, expected)
    asked = broker.admin().topics
    assert asked.key_owner(topic, "s", ORDER) == {"key": ORDER, "hash": 6067, "owner": "C3", "drainedBy": []}
    publish(broker.client(), topic, [ORDER])
    assert keys_of(receive(present["C3"], 1)) == [ORDER]
    present["C4"].close()
    assert_drawn(broker, topic, grown[2])
    # C1 has nobody to its right.
    present["C1"].close()
    assert_drawn(broker, topic, "|-- C3 --|----------- C2 -----------|")
    present["C2"].close()
    assert_drawn(broker, topic, "|---------------- C3 ---------------|")


def test_sticky_consumers_have_what_they_declare(broker: Broker, client: Client) -> None:
    topic = broker.topic()

    def declared(*quarters: int) -> ConsumerKeySharedPolicy:
        ranges = [(quarter * QUARTER, (quarter + 1) * QUARTER - 1) for quarter in quarters]
        return ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges)

    first = subscribe(client, topic, "C1", key_shared_policy=declared(0, 2))
    second = subscribe(client, topic, "C2", key_shared_policy=declared(1, 3))
    expected = "|-- C1 --|-- C2 --|-- C1 --|-- C2 --|"
    assert_drawn(broker, topic, expected)
    publish(client, topic, [ORDER])
    assert keys_of(receive(first, 1)) == [ORDER]
    with pytest.raises(ConsumerAssignError):
        subscribe(client, topic, "C3", key_shared_policy=declared(3))
    assert_drawn(broker, topic, expected)
    second.close()
    subscribe(client, topic, "C3", key_shared_policy=declared(3, 1))
    assert_drawn(broker, topic, expected.replace("C2", "C3"))


@pytest.mark.parametrize(
    ("is_ring", "slots"),
    [
        (False, {ORDER: 6067, "NON_KEY": 17_380, "NONE_KEY": 48_803}),
        (True, {ORDER: 20_788, "NON_KEY": 34_330}),
        (True, {"9": 2862, "4": 11_707, "8": 15_786, "7": 43_539, "3": 45_436}),
    ],
)
def test_hashes_of_keys(make_broker: Callable[..., Broker], is_ring: bool, slots: dict[str, int]) -> None:
    broker = make_broker(subscription_key_shared_use_consistent_hashing=is_ring)
    topic = broker.topic()
    subscribe(broker.client(), topic)
    asked = broker.admin().topics
    assert {key: asked.key_owner(topic, "s", key)["hash"] for key in slots} == slots


def test_the_stats_of_a_subscription_whose_second_consumer_came_later(
    make_broker: Callable[..., Broker],
) -> None:
    broker = make_broker(
        subscription_key_shared_use_consistent_hashing=True,
        subscription_key_shared_consistent_hashing_replica_points=10,
    )
    topic = broker.topic()
    subscribe(broker.client(), topic, "c1", receiver_queue_size=100)
    publish(broker.client(), topic, DIGITS * 2)
    wait_until(lambda: consumers(broker, topic)[0]["msgOutCounter"] == 20)
    subscribe(broker.client(), topic, "c2", receiver_queue_size=1000)
    publish(broker.client(), topic, DIGITS * 2)
    wait_until(lambda: consumers(broker, topic)[0]["msgOutCounter"] == 30)
    wait_until(lambda: consumers(broker, topic)[1]["availablePermits"] == 1000)
    first, second = consumers(broker, topic)
    expected = {
        "msgOutCounter": 30,
        "msgRateRedeliver": 0.0,
        "messageAckRate": 0.0,
        "consumerName": "c1",
        "availablePermits": 70,
        "unackedMessages": 30,
        "avgMessagesPerEntry": 1,
        "blockedConsumerOnUnackedMsgs": False,
        "drainingHashesCount": 5,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 10,
        "lastAckedTimestamp": 0,
        "keyHashRangeArrays": [[2960, 5968], [22258, 43033], [49261, 54464], [55155, 61273]],
    }
    assert {field: first[field] for field in expected} == expected
    assert [(one["hash"], one["unackMsgs"]) for one in first["drainingHashes"]] == [
        (2862, 2),
        (11707, 2),
        (15786, 2),
        (43539, 2),
        (45436, 2),
    ]
    assert all(one["blockedAttempts"] > 0 for one in first["drainingHashes"])
    expected = {
        "msgOutCounter": 0,
        "bytesOutCounter": 0,
        "consumerName": "c2",
        "availablePermits": 1000,
        "unackedMessages": 0,
        "avgMessagesPerEntry": 0,
        "blockedConsumerOnUnackedMsgs": False,
        "drainingHashesCount": 0,
        "drainingHashesClearedTotal": 0,
        "drainingHashesUnackedMessages": 0,
        "drainingHashes": [],
        "lastAckedTimestamp": 0,
        "lastConsumedTimestamp": 0,
        "keyHashRangeArrays": [
            [1, 2959],
            [5969, 22257],
            [43034, 49260],
            [54465, 55154],
            [61274, 65535],
        ],
    }
    assert {field: second[field] for field in expected} == expected
