"""A range that is held by copies in other processes, at a broker in this process."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from pulsar_ray.data.planning import lease_keeper
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.lease_keeper import RangeHold
from pulsar_ray.data.planning.plan import RangePlan
from pulsar_ray.data.planning.range_leases import LEASE_MS, RangeLeases
from pulsar_ray.data.reading.dataset_reading import (
    _HoldingStrategy,
    _reading,
    _TaskHold,
    takes_strategies,
)
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import Moved
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.cluster import PartitionRoute
from tests.conformance.broker import Broker

_CLOUDPICKLE: Any = ray.cloudpickle
VALUES = [b"%03d" % number for number in range(25)]


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
    )
    yield broker
    broker.close()


def held_range(broker: Broker) -> tuple[str, RangePlan, RangeLeases]:
    """A range of 25 messages that nothing but its leases keeps."""
    client, topic = broker.client(), broker.topic()
    kept = client.subscribe(topic, "holds everything back")
    producer = client.create_producer(topic)
    for value in VALUES:
        producer.send(value)
    plan, leases = BrokerPlanner.on(broker.cluster).held_plan([topic], "earliest", "latest")
    kept.unsubscribe()
    return topic, plan, leases


def ends_ms(broker: Broker, topic: str) -> list[int]:
    """When the leases of a topic end, in the order in which they were granted."""
    server = broker.cluster.partition(topic).server
    assert server is not None
    return [lease.expires_ms for lease in server.ledger.changes.leases()]


def copied(leases: RangeLeases, cluster: Any) -> RangeLeases:
    return RangeLeases(cluster, pickle.loads(pickle.dumps(leases.hand_on())))


class SilentCluster:
    """A cluster that nobody may ask."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called")


class NamesOfRay:
    """A cluster where a partition has an actor only once it was resolved, as one that slept on a Ray."""

    def __init__(self, cluster: StubCluster) -> None:
        self._cluster = cluster
        self._awake: set[str] = set()

    def resolve(self, topic: str, *, create: bool, timeout_s: float) -> list[PartitionRoute]:
        routes = self._cluster.resolve(topic, create=create, timeout_s=timeout_s)
        self._awake |= {route.address for route in routes}
        return routes

    def call(self, address: str, *arguments: Any, timeout_s: float) -> Any:
        if address not in self._awake:
            raise Moved(f"{address}: no such actor")
        return self._cluster.call(address, *arguments, timeout_s=timeout_s)

    call_again = call


def test_a_copy_has_leases_of_its_own_and_the_time_to_take_them(broker: Broker) -> None:
    topic, plan, leases = held_range(broker)
    (granted_ms,) = ends_ms(broker, topic)
    copy = copied(leases, broker.cluster)
    let_go_ms = granted_ms + 1000
    leases.let_go(let_go_ms)
    leases.let_go(let_go_ms + 1)
    assert ends_ms(broker, topic) == [let_go_ms + LEASE_MS]
    copy.renew(let_go_ms + 60_000)
    copy.renew(let_go_ms + 70_000)
    assert ends_ms(broker, topic) == [let_go_ms + LEASE_MS, let_go_ms + 70_000 + LEASE_MS]
    broker.admin().topics.truncate(topic)
    assert [
        value for piece in plan.ranges for rows in stored_rows(piece) for value in rows.block.values()
    ] == VALUES
    copy.let_go(let_go_ms + 80_000)
    assert ends_ms(broker, topic) == [let_go_ms + LEASE_MS]


def test_a_topic_made_anew_with_partitions_ends_no_renewal_of_others(broker: Broker) -> None:
    topics = [broker.topic(), broker.topic()]
    for topic in topics:
        kept = broker.client().subscribe(topic, "s")
        broker.client().create_producer(topic).send(b"x")
        kept.close()
    _, leases = BrokerPlanner.on(broker.cluster).held_plan(topics, "earliest", "latest")
    (granted_ms,) = ends_ms(broker, topics[1])
    broker.admin().topics.delete(topics[0], force=True)
    broker.admin().topics.create_partitioned_topic(topics[0], 4)
    leases.renew(granted_ms)
    assert ends_ms(broker, topics[1]) == [granted_ms + LEASE_MS]


def test_leases_without_copies_are_given_back_at_once_and_released_ones_with_copies(broker: Broker) -> None:
    topic, _, leases = held_range(broker)
    leases.let_go(0)
    assert ends_ms(broker, topic) == []
    topic, _, leases = held_range(broker)
    copied(leases, broker.cluster)
    leases.release()
    assert ends_ms(broker, topic) == []
    assert leases.hand_on().ranges == ()


def test_a_copy_that_soon_goes_asks_nobody_unless_it_was_handed_on(broker: Broker) -> None:
    topic, _, leases = held_range(broker)
    copied(leases, SilentCluster()).let_go(0)
    copy = copied(leases, broker.cluster)
    third = copied(copy, broker.cluster)
    (granted_ms,) = ends_ms(broker, topic)
    copy.let_go(granted_ms)
    assert ends_ms(broker, topic) == [granted_ms, granted_ms + LEASE_MS]
    third.renew(granted_ms + 1)
    assert len(ends_ms(broker, topic)) == 3


def test_leases_on_a_partition_that_sleeps_are_renewed(broker: Broker) -> None:
    topic, _, leases = held_range(broker)
    (granted_ms,) = ends_ms(broker, topic)
    wait_until(lambda: broker.cluster.put_to_sleep(topic, with_clients=True), what="its sleep")
    copy = copied(leases, NamesOfRay(broker.cluster))
    for later_ms in (1000, 2000):
        copy.renew(granted_ms + later_ms)
        assert ends_ms(broker, topic) == [granted_ms, granted_ms + later_ms + LEASE_MS]
    copy.release()
    leases.release()
    assert ends_ms(broker, topic) == []


def test_a_process_has_one_hold_of_a_range_for_as_long_as_anybody_there_refers_to_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _, leases = held_range(broker)
    hold = RangeHold(leases)
    handed = pickle.dumps(hold)
    assert pickle.loads(handed) is hold
    # From here on as in another process, where a copy takes leases at once.
    monkeypatch.setattr(lease_keeper, "_here", weakref.WeakValueDictionary())
    monkeypatch.setattr(lease_keeper, "RayCluster", lambda: broker.cluster)
    monkeypatch.setattr(lease_keeper, "COPY_LEASES_AFTER_S", 0.0)
    copies = [pickle.loads(handed) for _ in range(2)]
    assert copies[0] is copies[1] is not hold
    wait_until(lambda: len(ends_ms(broker, topic)) == 2, what="leases of the copy")
    del hold
    copies.pop()
    gc.collect()
    copies[0].give_back()
    copies.clear()
    gc.collect()
    wait_until(lambda: len(ends_ms(broker, topic)) == 1, what="the end of the copy")


def test_a_dataset_hands_its_hold_on_and_its_tasks_get_nothing_of_it(broker: Broker) -> None:
    topic, _, leases = held_range(broker)
    hold = RangeHold(leases)
    _CLOUDPICKLE.loads(_CLOUDPICKLE.dumps(_reading(("value",), 1, _TaskHold(hold))))
    strategy = _HoldingStrategy(hold)
    del hold
    gc.collect()
    assert _CLOUDPICKLE.loads(_CLOUDPICKLE.dumps(strategy))._hold is strategy._hold
    (granted_ms,) = ends_ms(broker, topic)
    del strategy
    gc.collect()
    wait_until(lambda: (ends_ms(broker, topic) or [0])[0] > granted_ms, what="an hour for the copies")


def test_a_range_that_only_tasks_read_is_given_back_with_the_last_reference(broker: Broker) -> None:
    topic, _, leases = held_range(broker)
    hold = RangeHold(leases)
    _CLOUDPICKLE.dumps(_reading(("value",), 1, _TaskHold(hold)))
    del hold
    gc.collect()
    wait_until(lambda: ends_ms(broker, topic) == [], what="the end of the range")


@pytest.mark.parametrize(("version", "takes"), [("2.31.0", False), ("2.50.1", False), ("2.51.0", True)])
def test_a_strategy_is_given_to_rays_that_take_it_without_a_warning(version: str, takes: bool) -> None:
    assert takes_strategies(version) is takes


def test_nothing_is_leased_of_another_topic_that_has_the_name_now(broker: Broker) -> None:
    topic, _, leases = held_range(broker)
    topics = broker.admin().topics
    topics.delete(topic, force=True)
    topics.create_partitioned_topic(topic, 1)
    topics.create_subscription(topic, "starts it")
    leases.renew(0)
    assert ends_ms(broker, f"{topic}-partition-0") == []
