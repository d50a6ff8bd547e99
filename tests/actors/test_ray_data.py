"""Topics as Ray Datasets on a real Ray."""

from __future__ import annotations

import gc
from typing import Any

import pyarrow as pa
import pytest
import ray

import pulsar_ray.data
from pulsar_ray import Admin, Client
from pulsar_ray.client.arrow.received_table import TABLE_SCHEMA
from pulsar_ray.data.planning import lease_keeper
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.reading.dataset_reading import _fetched
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError, TopicNotFound
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import partition_name
from tests.running_broker import Broker

WAIT_S = 60.0


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, end)]


def lease_ids(broker: Broker, partition: str) -> list[int]:
    def ids(actor: Any) -> list[int]:
        return [lease.lease_id for lease in actor._server.ledger.changes.leases()]

    return list(broker.run_in(partition_name(partition), ids))


def lease_count(broker: Broker, partition: str) -> int:
    return len(lease_ids(broker, partition))


@pytest.mark.long
def test_a_range_is_a_dataset_that_the_broker_keeps_for_as_long_as_it_is_there(
    broker: Broker, client: Client, topic: str
) -> None:
    Admin(broker.address).topics.create_partitioned_topic(topic, 2)
    parts = [f"{topic}-partition-{index}" for index in range(2)]
    keys = [f"k{number % 7}" for number in range(300)]
    producer = client.create_producer(topic)
    producer.send_many(numbers(0, 300), partition_keys=keys)
    dataset = pulsar_ray.data.read(topic, num_cpus=0.5)
    producer.send(b"later")
    assert [lease_count(broker, part) for part in parts] == [1, 1]
    rows = dataset.take_all()
    assert sorted((row["value"], row["key"]) for row in rows) == sorted(
        zip(numbers(0, 300), keys, strict=True)
    )
    assert {row["topic"] for row in rows} == set(parts)
    assert pa.schema(dataset.schema().base_schema).equals(TABLE_SCHEMA)
    counted = dataset.groupby("key").count()
    assert {row["key"]: row["count()"] for row in counted.take_all()} == {k: keys.count(k) for k in set(keys)}
    few = pulsar_ray.data.read(topic, columns=["value", "topic"], num_cpus=0.5)
    assert few.schema().names == ["value", "topic"]
    assert few.count() == 301
    pulsar_ray.data.release(few)
    pulsar_ray.data.release(few)
    nothing = pulsar_ray.data.read(topic, "latest")
    # Older Rays know no columns of a Dataset without rows.
    schema = nothing.schema()
    assert schema is None or schema.names == TABLE_SCHEMA.names
    assert nothing.count() == 0
    with pytest.raises(TopicNotFound):
        pulsar_ray.data.read("nobody-made-it")
    del dataset, counted, nothing, few

    def given_back() -> bool:
        # Threads of Ray Data's that ran the Dataset let go of it in their own time, and in cycles.
        gc.collect()
        return [lease_count(broker, part) for part in parts] == [0, 0]

    wait_until(given_back, WAIT_S, "ranges that are given back")


def holder_of(handed: Any) -> Any:
    """An actor that has been given a Dataset, or a split of one."""

    class Holder:
        def keep(self, datasets: list[Any]) -> None:
            (self.dataset,) = datasets

        def rows(self) -> int:
            return sum(table.num_rows for table in self.dataset.iter_batches(batch_format="pyarrow"))

        def holds_of_reading(self) -> int:
            """Drop the Dataset amid reading it, and count the holds."""
            reading = iter(self.dataset.iter_batches(batch_format="pyarrow", batch_size=10))
            del self.dataset
            next(reading)
            gc.collect()
            return len(lease_keeper._here)

    holder: Any = ray.remote(num_cpus=0.1)(Holder).remote()
    ray.get(holder.keep.remote([handed]), timeout=WAIT_S)
    return holder


@pytest.mark.long
def test_a_range_stays_for_as_long_as_any_process_has_its_dataset(
    broker: Broker, client: Client, topic: str
) -> None:
    def collected(leases: list[int]) -> bool:
        gc.collect()
        return lease_ids(broker, topic) == leases

    client.create_producer(topic).send_many(numbers(0, 300))
    computed = pulsar_ray.data.read(topic, columns=["value"], num_cpus=0.1)
    assert computed.count() == 300
    del computed
    wait_until(lambda: collected([]), WAIT_S, "a range that nobody else was given")
    holders = []
    for form in ("itself", "mapped", "split"):
        handed: Any = pulsar_ray.data.read(topic, columns=["value"], num_cpus=0.1)
        *others, own = lease_ids(broker, topic)
        if form == "mapped":
            handed = handed.map_batches(lambda batch: batch, num_cpus=0.1)
        if form == "split":
            (handed,) = handed.streaming_split(1)
        holders.append(holder_of(handed))
        del handed
        wait_until(lambda: collected([*others, own + 1]), WAIT_S, f"a last lease, given {form}")  # noqa: B023
    Admin(broker.address).topics.truncate(topic)
    for holder in holders:
        assert ray.get(holder.rows.remote(), timeout=WAIT_S) == 300
    for holder in holders[:2]:  # a split is read by yet another process
        assert ray.get(holder.holds_of_reading.remote(), timeout=WAIT_S) == 1
    for holder in holders:
        ray.kill(holder)


def test_a_range_of_another_node_is_fetched_from_there(broker: Broker, client: Client, topic: str) -> None:
    client.create_producer(topic).send_many(numbers(0, 50))
    with BrokerPlanner(broker.address).plan([topic], "earliest", "latest") as plan:
        (piece,) = plan.ranges
        fetched = list(_fetched(piece, ("value", "topic"), 1, None))
    assert pa.concat_tables(fetched).to_pylist() == [
        {"value": value, "topic": topic} for value in numbers(0, 50)
    ]


def stored(client: Client, topic: str) -> list[tuple[bytes | None, str | None]]:
    with pulsar_ray.data.batches(topic, idle_millis=3000, client=client) as tables:
        return [(row["value"], row["key"]) for table in tables for row in table.to_pylist()]


@pytest.mark.long
def test_a_dataset_is_written_as_messages_once_under_a_name(
    broker: Broker, client: Client, topic: str
) -> None:
    Admin(broker.address).topics.create_partitioned_topic(topic, 2)
    rows: list[dict[str, Any]] = [
        {"payload": f"{number:03}", "who": f"k{number % 5}", "more": number} for number in range(100)
    ]
    wanted = [(row["payload"].encode(), row["who"]) for row in rows]
    dataset = ray.data.from_items(rows, override_num_blocks=3)
    columns: Any = {"value": "payload", "key": "who"}
    assert pulsar_ray.data.write(dataset, topic, **columns, num_cpus=0.5) == 100
    assert sorted(stored(client, topic)) == sorted(wanted)
    for _ in range(2):
        written = pulsar_ray.data.write(dataset, topic, **columns, name="people", batch_id=4)
        assert written == 100
    assert sorted(stored(client, topic)) == sorted(2 * wanted)
    again = pulsar_ray.data.read(topic, columns=["key", "value", "properties"], num_cpus=0.5)
    assert pulsar_ray.data.write(again, f"{topic}-copy", num_cpus=0.5) == 200
    assert sorted(stored(client, f"{topic}-copy")) == sorted(2 * wanted)
    with pytest.raises(InvalidConfiguration, match="has no column 'payload'; there are key, value"):
        pulsar_ray.data.write(again, topic, value="payload", name="others")
    with pytest.raises(InvalidConfiguration, match="block_bytes is 0: give a number of bytes, 1 or more"):
        pulsar_ray.data.read(topic, block_bytes=0)
    fewer = ray.data.from_items(rows, override_num_blocks=2)
    with pytest.raises(InvalidConfiguration, match="has 2 blocks, and had 3 when batch 4 of 'people'"):
        pulsar_ray.data.write(fewer, topic, **columns, name="people", batch_id=4)
    with pytest.raises(NotAllowedError, match="comes after batch 4"):
        pulsar_ray.data.write(dataset, topic, **columns, name="people", batch_id=3)
    broker.forget(f"{topic}-copy")


@pytest.mark.long
def test_a_topic_is_read_as_the_table_of_its_keys(broker: Broker, client: Client, topic: str) -> None:
    latest: dict[str, bytes] = {}

    def publish(turn: int, keys: int) -> None:
        values = {f"k{number}": b"%d-%d" % (turn, number) for number in range(keys)}
        producer.send_many(list(values.values()), partition_keys=list(values))
        latest.update(values)

    def table(dataset: Any) -> dict[str, bytes]:
        rows = dataset.take_all()
        assert len({row["key"] for row in rows}) == len(rows)
        return {row["key"]: row["value"] for row in rows}

    def compact() -> None:
        admin.topics.compact(topic)
        states = [admin.topics.compaction_status]
        wait_until(lambda: states[0](topic)["status"] == "SUCCESS", WAIT_S, "the end of the compaction")

    def read() -> Any:
        return pulsar_ray.data.read(topic, columns=["key", "value"], read_compacted=True, num_cpus=0.1)

    with Admin(broker.address) as admin:
        admin.topics.create_partitioned_topic(topic, 2)
        producer = client.create_producer(topic)
        publish(0, 300)
        publish(1, 200)
        producer.send(b"no key")
        assert table(read()) == latest
        compact()
        assert table(read()) == latest
        publish(2, 100)
        producer.send(None, partition_key="k5")
        del latest["k5"]
        planned, expected = read(), dict(latest)
        assert table(planned) == expected
        for turn in (3, 4):
            publish(turn, 50)
            compact()
        # What it was planned on is there still, though other forms have taken its place.
        assert table(planned) == expected
        pulsar_ray.data.release(planned)
        assert table(read()) == latest
        with pytest.raises(InvalidConfiguration, match="no start and no end"):
            pulsar_ray.data.read(topic, "latest", read_compacted=True)
        unstored = topic.replace("persistent://", "non-persistent://")
        assert unstored != topic
        client.create_producer(unstored)
        with pytest.raises(InvalidConfiguration, match="is not persistent"):
            pulsar_ray.data.read(unstored, read_compacted=True)
