"""Consumers of several topics on a real Ray, and a topic that grows under them."""

from __future__ import annotations

import re
from collections import Counter

from pulsar_ray import Admin, Client, Consumer
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.plan import AtSubscription, as_bound
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.testing.waiting import wait_until
from tests.running_broker import Broker

WAIT_MS = 60_000
WAIT_S = 60.0


def received(consumer: Consumer, count: int) -> list[tuple[str, bytes]]:
    found = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        found.append((message.topic_name(), message.data()))
    return sorted(found)


def test_a_list_a_pattern_and_a_table_view_follow_a_topic_that_grows(
    broker: Broker, client: Client, topic: str
) -> None:
    plain, parts = f"{topic}-plain", topic
    topics = Admin(broker.address).topics
    topics.create_partitioned_topic(parts, 1)
    listed = client.subscribe([plain, parts], "listed", auto_update_partitions_interval_seconds=1)
    name = parts.rsplit("/", 1)[1]
    matching = client.subscribe(re.compile(name[:-1] + "."), "matching", pattern_auto_discovery_period=1)
    view = client.create_table_view(plain)
    producer = client.create_producer(parts, auto_update_partitions_interval_seconds=1)
    client.create_producer(plain).send(b"1", partition_key="k")
    producer.send(b"2")
    assert received(listed, 2) == sorted([(plain, b"1"), (f"{parts}-partition-0", b"2")])
    assert received(matching, 1) == [(f"{parts}-partition-0", b"2")]
    wait_until(lambda: view.get("k") == b"1", timeout_s=WAIT_S, what="the table's only value")
    topics.update_partitioned_topic(parts, 2)
    assert topics.get_partitions(parts) == 2
    assert topics.subscriptions(f"{parts}-partition-1") == ["listed", "matching"]
    wait_until(lambda: producer.partition_count == 2, timeout_s=WAIT_S, what="two partitions")
    producer.send(b"3")
    producer.send(b"4")
    for consumer in (listed, matching):
        found = received(consumer, 2)
        assert {where for where, _ in found} == {f"{parts}-partition-0", f"{parts}-partition-1"}
        assert {data for _, data in found} == {b"3", b"4"}
    for opened in (listed, matching, view):
        opened.close()
    broker.forget(plain)


def test_spark_reads_what_a_grown_topic_has_in_all_its_partitions(broker: Broker, topic: str) -> None:
    topics = Admin(broker.address).topics
    topics.create_partitioned_topic(topic, 1)
    client = broker.client()
    client.subscribe(topic, "spark").close()
    sent = [b"before", b"after 0", b"after 1"]
    producer = client.create_producer(topic, auto_update_partitions_interval_seconds=1)
    producer.send(sent[0])
    topics.update_partitioned_topic(topic, 2)
    wait_until(lambda: producer.partition_count == 2, timeout_s=WAIT_S, what="two partitions")
    for value in sent[1:]:
        producer.send(value)
    for start in ("earliest", AtSubscription("spark")):
        with BrokerPlanner(broker.address).plan([topic], as_bound(start, 0), "latest") as planned:
            rows = [rows for piece in planned.ranges for rows in stored_rows(piece)]
            assert {piece.partition for piece in planned.ranges} == {0, 1}
        found = [value for row in rows for value in row.block.values()[row.start : row.stop]]
        assert Counter(found) == Counter(sent)
