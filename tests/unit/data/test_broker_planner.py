"""Planning at a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.plan import AtMessages, RangePlan, check_nothing_lost
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import DataLost, TopicNotFound
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with ledgers of ten entries, which looks each second for what nobody needs."""
    broker = Broker(
        tmp_path,
        "ray",
        seed=1,
        retention_check_interval_in_seconds=1,
        managed_ledger_max_entries_per_ledger=10,
        managed_ledger_min_ledger_rollover_time_minutes=0,
        new_topic_retention_seconds=0,
    )
    yield broker
    broker.close()


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, end)]


def values_of(plan: RangePlan) -> list[bytes | None]:
    rows = [rows for piece in plan.ranges for rows in stored_rows(piece)]
    return [value for row in rows for value in row.block.values()[row.start : row.stop]]


def lease_count(broker: Broker, topic: str) -> int:
    server = broker.cluster.partition(topic).server
    assert server is not None
    return len(server.ledger.changes.leases())


def test_what_is_trimmed_of_a_range_is_told_and_the_rest_is_read(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    kept = client.subscribe(topic, "holds everything back")
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 45)]
    kept.unsubscribe()
    wait_until(lambda: broker.first_stored(topic) == (ids[40].ledger_id(), 0), what="only the last are left")
    planner = BrokerPlanner.on(broker.cluster)

    def read(start: MessageId, end: MessageId | None = None) -> tuple[list[bytes | None], RangePlan]:
        last = "latest" if end is None else AtMessages((end,))
        with planner.plan([topic], AtMessages((start,)), last) as plan:  # type: ignore[arg-type]
            return values_of(plan), plan

    rest, plan = read(ids[3])
    assert rest == numbers(40, 45)
    with pytest.raises(DataLost) as caught:
        check_nothing_lost(plan.lost)
    for name in (topic, f"{ids[3].ledger_id()}:3", f"{ids[39].ledger_id()}:9"):
        assert name in str(caught.value)
    assert read(ids[3], ids[8])[0] == []
    assert read(ids[3], ids[8])[1].lost[0].last == (ids[8].ledger_id(), 8)
    behind_the_trimmed = MessageId(-1, ids[39].ledger_id(), 10)
    for start in (ids[40], ids[42], behind_the_trimmed):
        found, plan = read(start)
        assert not plan.lost
        assert found == numbers(42 if start is ids[42] else 40, 45)


@pytest.mark.parametrize("bound", ["start", "end"])
def test_an_id_of_a_topic_that_was_deleted_bounds_nothing_of_its_successor(
    broker: Broker, bound: str
) -> None:
    client, topic = broker.client(), broker.topic()
    producer = client.create_producer(topic)
    former = AtMessages((producer.send(b"former"),))
    producer.close()
    broker.admin().topics.delete(topic, force=True)
    broker.admin().topics.create_topic(topic)
    client.create_producer(topic).send(b"later")
    start, end = (former, "latest") if bound == "start" else ("earliest", former)
    with (
        BrokerPlanner.on(broker.cluster).plan([topic], start, end) as plan,  # type: ignore[arg-type]
        pytest.raises(DataLost, match=f"{topic}.*made anew since"),
    ):
        check_nothing_lost(plan.lost)


def test_a_plan_keeps_its_files_until_it_is_left(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    kept = client.subscribe(topic, "holds everything back")
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(0, 25)]
    with BrokerPlanner.on(broker.cluster).plan([topic], "earliest", "latest") as plan:
        kept.unsubscribe()
        assert lease_count(broker, topic) == 1
        assert values_of(plan) == numbers(0, 25)
    assert lease_count(broker, topic) == 0
    wait_until(lambda: broker.first_stored(topic) == (ids[20].ledger_id(), 0), what="the rest is gone")


def test_leases_are_renewed_and_given_back_once(broker: Broker) -> None:
    client, topic = broker.client(), broker.topic()
    client.create_producer(topic).send(b"x")
    plan, leases = BrokerPlanner.on(broker.cluster).held_plan([topic], "earliest", "latest")
    assert len(plan.ranges) == 1
    server = broker.cluster.partition(topic).server
    assert server is not None
    (before,) = server.ledger.changes.leases()
    leases.renew(before.expires_ms)
    (after,) = server.ledger.changes.leases()
    assert after.expires_ms > before.expires_ms
    leases.release()
    leases.release()
    leases.renew(after.expires_ms)
    assert lease_count(broker, topic) == 0


def test_a_topic_that_is_unknown_leaves_no_lease_behind(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic).send(b"x")
    planner = BrokerPlanner.on(broker.cluster)
    with pytest.raises(TopicNotFound), planner.plan([topic, "nobody-made-it"], "earliest", "latest"):
        pass
    assert lease_count(broker, topic) == 0


def test_a_topic_that_is_given_twice_is_read_once(broker: Broker) -> None:
    full = broker.topic(partitions=2)
    with broker.client().create_producer(full) as producer:
        producer.send_many(numbers(0, 20), partition_keys=[f"k{number}" for number in range(20)])
    asked = [full, full.rpartition("/")[2], f"{full}-partition-1"]
    with BrokerPlanner.on(broker.cluster).plan(asked, "earliest", "latest") as plan:
        assert sorted(value for value in values_of(plan) if value) == numbers(0, 20)
