"""The partitions of a consumer, as they come and go."""

from __future__ import annotations

import threading

import pytest

from pulsar_ray.client.consumer.consumer_partitions import KEEP_GONE
from pulsar_ray.client.options.schema import StringSchema
from pulsar_ray.client.schemas.readings import SchemaReadings
from pulsar_ray.errors import ConsumerBusy, OperationNotSupported, TopicNotFound, WrongNode
from pulsar_ray.model.topic_schema import TopicSchema, version_bytes
from pulsar_ray.transport.cluster import PartitionRoute
from tests.unit.client.consumer.delivering import TOPIC, core_of, deliver, open_partition

WAIT_S = 20.0


def part(index: int) -> str:
    return f"{TOPIC}-partition-{index}"


def test_the_partition_of_a_message_is_found_by_its_topic() -> None:
    core = core_of(part(0), part(1))
    first, _ = open_partition(core, part(0))
    second, _ = open_partition(core, part(1))
    assert [core.partitions.of(part(index), -1) for index in (0, 1)] == [first, second]
    for unknown in ("", part(2)):
        with pytest.raises(OperationNotSupported):
            core.partitions.of(unknown, 0)


def test_the_only_partition_takes_an_id_without_a_topic_and_none_of_another_topic() -> None:
    core = core_of()
    only, _ = open_partition(core)
    assert core.partitions.single is only
    assert core.partitions.of("", 3) is only
    with pytest.raises(OperationNotSupported):
        core.partitions.of(part(1), 1)


def test_while_a_partition_is_away_its_acknowledgments_are_refused_and_the_others_go_by_topic() -> None:
    core = core_of()
    core.partitions.miss(PartitionRoute(part(1), 1, ""), WrongNode("its node is down"))
    open_partition(core, part(0))
    assert core.partitions.single is None
    with pytest.raises(WrongNode):
        core.partitions.of(part(1), 1)
    with pytest.raises(WrongNode):
        core.partitions.check_all_there()
    back, _ = open_partition(core, part(1))
    assert core.partitions.of(part(1), 1) is back
    core.partitions.check_all_there()


def test_a_deleted_topic_takes_acknowledgments_without_effect_for_a_while() -> None:
    core = core_of(TOPIC, part(0))
    open_partition(core, TOPIC)
    gone, link = open_partition(core, part(0))
    core.partitions.failed(gone, TopicNotFound("deleted"))
    assert core.partitions.of(part(0), 0) is gone
    with core.lock:
        gone.ack_sender.acks.add(1, 2)
    assert gone.session.is_abandoned
    gone.ack_sender.flush()
    assert not link.asked
    for index in range(1, KEEP_GONE + 1):
        later, _ = open_partition(core, part(index))
        core.partitions.failed(later, TopicNotFound("deleted"))
    with pytest.raises(OperationNotSupported):
        core.partitions.of(part(0), 0)


def test_how_the_values_of_a_deleted_topic_are_read_is_forgotten() -> None:
    core = core_of(TOPIC, part(0), schema=StringSchema())
    asked: list[str] = []

    def find(topic: str, _: int) -> TopicSchema:
        asked.append(topic)
        return TopicSchema("STRING", "")

    core.readings = SchemaReadings(core.options.schema, find)
    for _ in range(2):
        partition, _ = open_partition(core, TOPIC)
        for _ in range(2):
            assert core.readings.of_topic(TOPIC).of(version_bytes(0)).decode(b"x") == "x"
        core.partitions.failed(partition, TopicNotFound("deleted"))
    assert asked == [TOPIC, TOPIC]


def test_a_refusal_ends_the_whole_consumer_where_it_is_no_deletion() -> None:
    core = core_of(TOPIC, part(0))
    refused, _ = open_partition(core, TOPIC)
    core.partitions.failed(refused, ConsumerBusy("another one is open"))
    with pytest.raises(ConsumerBusy):
        core.check()


def test_partitions_that_come_and_go_while_messages_arrive_lose_none_of_the_others() -> None:
    core = core_of(TOPIC, part(0))
    kept, _ = open_partition(core, TOPIC)

    def come_and_go() -> None:
        for number in range(1, 50):
            passing, _ = open_partition(core, part(0))
            deliver(passing, 1, f"of {number}".encode())
            core.partitions.remove(passing)

    changing = threading.Thread(target=come_and_go)
    changing.start()
    for number in range(1, 200):
        deliver(kept, number, b"kept")
    changing.join(WAIT_S)
    assert not changing.is_alive()
    assert [core.receive(0.0).data() for _ in range(199)] == 199 * [b"kept"]
    assert not core.has_received()
