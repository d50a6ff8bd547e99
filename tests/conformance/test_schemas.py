"""Typed topics: values come back by the version that they were written with, over every carrier."""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

import pydantic
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import (
    IncompatibleSchema,
    InvalidConfiguration,
    PulsarException,
    SchemaSerializationException,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_schema import version_bytes
from pulsar_ray.schema import (
    Array,
    AutoSchema,
    AvroSchema,
    BytesSchema,
    CustomEnum,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueSchema,
    Map,
    Record,
    Schema,
    String,
    StringSchema,
)
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, receive
from tests.conformance.event_loop import on_a_loop

TOPIC_POLICY = "schema_compatibility_strategy"


class Colour(Enum):
    RED = 1
    GREEN = 2


class Line(Record):
    item = String(required=True)
    count = Integer(default=1, required_default=True)


class Order(Record):
    number = Integer(required=True)
    colour = CustomEnum(Colour)
    lines = Array(Line())
    notes = Map(String())


@dataclass
class Reading:
    sensor: str
    value: float = 0.0
    tags: list[str] = field(default_factory=list)
    note: str | None = None


class Model(pydantic.BaseModel):
    sensor: str
    value: float = 0.0


@dataclass
class Point:
    x: int


@dataclass
class WiderPoint:
    """What Point became: it lost nothing, and has another field."""

    y: int = 7
    x: int = 0


ORDER = Order(
    number=3, colour=Colour.GREEN, lines=[Line(item="book"), Line(item="pen", count=2)], notes={"k": "ü"}
)
DEFINITION = {
    "type": "record",
    "name": "D",
    "fields": [{"name": "a", "type": ["null", "int"], "default": None}],
}


def versions(broker: Broker, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.cluster.controller(
        "call_part", "schemas", "versions", topic, timeout_s=20
    )
    return found


def set_policy(broker: Broker, topic: str, name: str, value: Any) -> None:
    with broker.admin() as admin:
        admin.topics.policies.set(topic, name, value)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("schema", "value", "plain"),
    [
        (
            lambda: JsonSchema(Order),
            ORDER,
            {
                "number": 3,
                "colour": 2,
                "lines": [{"item": "book", "count": 1}, {"item": "pen", "count": 2}],
                "notes": {"k": "ü"},
            },
        ),
        (
            lambda: AvroSchema(Order),
            ORDER,
            {
                "number": 3,
                "colour": "GREEN",
                "lines": [{"item": "book", "count": 1}, {"item": "pen", "count": 2}],
                "notes": {"k": "ü"},
            },
        ),
        (
            lambda: Reading,
            Reading("a", 1.5, ["x"]),
            {"sensor": "a", "value": 1.5, "tags": ["x"], "note": None},
        ),
        (lambda: AvroSchema(Reading), Reading("a"), {"sensor": "a", "value": 0.0, "tags": [], "note": None}),
        (lambda: Model, Model(sensor="m", value=2), {"sensor": "m", "value": 2.0}),
        (lambda: AvroSchema(None, DEFINITION), {"a": 5}, {"a": 5}),
        (
            lambda: KeyValueSchema(StringSchema(), AvroSchema(Point)),
            KeyValue("k", Point(4)),
            KeyValue("k", {"x": 4}),
        ),
        (StringSchema, "grün", "grün"),
    ],
    ids=[
        "record-json",
        "record-avro",
        "dataclass",
        "dataclass-avro",
        "pydantic",
        "definition",
        "pair",
        "text",
    ],
)
def test_values_come_back_as_they_were_with_or_without_their_class(
    broker: Broker, client: Client, schema: Callable[[], Any], value: Any, plain: Any, batched: bool
) -> None:
    topic = broker.topic(partitions=2)
    producer = client.create_producer(
        topic, schema=schema(), batching_enabled=batched, batching_max_publish_delay_ms=1
    )
    typed = client.subscribe(topic, "typed", schema=schema(), initial_position=EARLIEST)
    untyped = client.subscribe(topic, "untyped", schema=AutoSchema(), initial_position=EARLIEST)
    of_bytes = client.subscribe(topic, "bytes", initial_position=EARLIEST)
    producer.send(value)
    producer.send_async(value, None, properties={"p": "q"}, partition_key="key")
    producer.send_many([value, None])
    producer.send(None, partition_key="key")
    found = [message.value() for message in receive(typed, 5)]
    assert sorted(map(str, found)) == sorted(map(str, [value, value, value, None, None]))
    assert all(each in (value, None) for each in found)
    assert [each for each in (message.value() for message in receive(untyped, 5)) if each is not None] == [
        plain
    ] * 3
    messages = receive(of_bytes, 5)
    assert {message.schema_version() for message in messages} == {"\0" * 8}
    assert all(isinstance(message.value(), (bytes, type(None))) for message in messages)


def test_separated_pairs_go_by_their_keys(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    schema = KeyValueSchema(StringSchema(), AvroSchema(Point), separated=True)
    producer = client.create_producer(topic, schema=schema, batching_enabled=True)
    typed = client.subscribe(topic, "typed", schema=schema, initial_position=EARLIEST)
    untyped = client.subscribe(topic, "untyped", schema=AutoSchema(), initial_position=EARLIEST)
    view = client.create_table_view(topic, schema=schema)
    producer.send(KeyValue("a", Point(1)))
    pairs: list[Any] = [KeyValue("a", Point(2)), KeyValue("b", Point(3))]
    producer.send_many(pairs)
    producer.send(KeyValue("b", None))
    found = receive(typed, 4)
    assert sorted((message.value() for message in found), key=str) == [
        KeyValue("a", Point(1)),
        KeyValue("a", Point(2)),
        KeyValue("b", None),
        KeyValue("b", Point(3)),
    ]
    assert {message.partition_key() for message in found} == {"YQ==", "Yg=="}
    assert KeyValue("a", {"x": 2}) in [message.value() for message in receive(untyped, 4)]
    wait_until(lambda: view.get("YQ==") == KeyValue("a", Point(2)) and len(view) == 1, what="the view")
    with pytest.raises(ValueError, match="leave partition_key out"):
        producer.send(KeyValue("a", Point(1)), partition_key="b")
    with pytest.raises(IncompatibleSchema, match="field 'key'"):
        client.create_producer(topic, schema=KeyValueSchema(StringSchema(), AvroSchema(Point)))


def test_all_kinds_of_readers_decode(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, schema=Point)
    producer.send(Point(1), partition_key="a")
    producer.send(Point(2), partition_key="b")
    reader = client.create_reader(topic, MessageId.earliest, schema=Point)
    assert [reader.read_next(WAIT_MS).value() for _ in range(2)] == [Point(1), Point(2)]
    view = client.create_table_view(topic, schema=Point)
    assert view.get("b") == Point(2)
    heard: list[Any] = []
    view.for_each_and_listen(lambda key, value: heard.append((key, value)))
    listened: list[Any] = []
    client.subscribe(
        topic,
        "listens",
        schema=Point,
        initial_position=EARLIEST,
        message_listener=lambda consumer, message: listened.append(message.value()),
    )
    producer.send(Point(3), partition_key="a")
    producer.send(None, partition_key="b")
    wait_until(lambda: heard[2:] == [("a", Point(3)), ("b", None)], what="the view's updates")
    wait_until(lambda: len(listened) == 4, what="the listener's messages")
    assert listened == [Point(1), Point(2), Point(3), None]
    several = client.subscribe([topic, broker.topic()], "several", schema=Point, initial_position=EARLIEST)
    assert several.receive(WAIT_MS).value() == Point(1)


@on_a_loop
async def test_the_asyncio_client_does_the_same(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        producer = await client.create_producer(topic, schema=AvroSchema(Point))
        consumer = await client.subscribe(
            topic, "s", schema=AvroSchema(WiderPoint), initial_position=EARLIEST
        )
        await producer.send(Point(1))
        with pytest.raises(TypeError):
            await producer.send({"x": 1})
        message = await consumer.receive()
        assert message.value() == WiderPoint(7, 1)
        with pytest.raises(IncompatibleSchema, match="as STRING"):
            await client.create_producer(topic, schema=StringSchema())


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_each_version_is_read_by_itself(broker: Broker, client: Client, kind: Any) -> None:
    topic = broker.topic()
    older = client.create_producer(topic, schema=kind(Point))
    older.send(Point(1))
    old_reader = client.subscribe(topic, "old", schema=kind(Point), initial_position=EARLIEST)
    set_policy(broker, topic, TOPIC_POLICY, "BACKWARD")
    newer = client.create_producer(topic, schema=kind(WiderPoint))
    newer.send(WiderPoint(8, 2))
    older.send(Point(3))
    consumer = client.subscribe(topic, "new", schema=kind(WiderPoint), initial_position=EARLIEST)
    messages = receive(consumer, 3)
    # Fields stand in another order: read by one's own schema alone they would be each other's.
    assert [message.value() for message in messages] == [WiderPoint(7, 1), WiderPoint(8, 2), WiderPoint(7, 3)]
    assert [message.schema_version() for message in messages] == ["\0" * 8, "\0" * 7 + "\1", "\0" * 8]
    assert [message.value() for message in receive(old_reader, 3)] == [Point(1), Point(2), Point(3)]
    auto = client.subscribe(topic, "auto", schema=AutoSchema(), initial_position=EARLIEST)
    assert [message.value() for message in receive(auto, 3)] == [{"x": 1}, {"y": 8, "x": 2}, {"x": 3}]


def test_refusals_say_what_does_not_fit(broker: Broker, client: Client) -> None:
    @dataclass
    class Renamed:
        z: int

    topic = broker.topic()
    client.create_producer(topic, producer_name="first", schema=Point)
    for open_it in (
        lambda: client.create_producer(topic, schema=Renamed),
        lambda: client.subscribe(topic, "s", schema=Renamed),
        lambda: client.create_reader(topic, MessageId.earliest, schema=Renamed),
        lambda: client.create_table_view(topic, schema=Renamed),
    ):
        with pytest.raises(IncompatibleSchema) as refused:
            open_it()
        for part in (topic, "version 0", "producer 'first'", "strategy FULL", "field 'z'", "a default"):
            assert part in str(refused.value)
    with broker.admin() as admin:
        assert admin.topics.stats(topic)["subscriptions"] == {}
    assert len(versions(broker, topic)) == 1
    set_policy(broker, topic, TOPIC_POLICY, "ALWAYS_COMPATIBLE")
    client.create_producer(topic, schema=Renamed)
    assert len(versions(broker, topic)) == 2


def test_producers_of_bytes_are_refused_where_validation_is_enforced(broker: Broker, client: Client) -> None:
    topic = broker.topic(partitions=2)
    set_policy(broker, topic, "schema_validation_enforced", True)
    early = client.create_producer(topic)
    early.send(b"before there is a schema")
    client.create_producer(topic, schema=Point).send(Point(1))
    early.send(b"one that was open goes on")
    with pytest.raises(IncompatibleSchema, match="SchemaValidationEnforced is enabled"):
        client.create_producer(topic)
    with pytest.raises(IncompatibleSchema, match="SchemaValidationEnforced is enabled"):
        client.create_producer(topic, schema=BytesSchema())
    set_policy(broker, topic, "schema_validation_enforced", False)
    client.create_producer(topic).send(b'{"x": 5}')
    consumer = client.subscribe(topic, "s", schema=Point, initial_position=EARLIEST)
    found: list[Any] = []
    named: list[bool] = []
    for message in receive(consumer, 4):
        try:
            found.append(message.value())
        except SchemaSerializationException as error:
            found.append(str(error))
            named.append(error.message_id == message.message_id())
        consumer.acknowledge(message)
    texts = [each for each in found if isinstance(each, str)]
    assert len(texts) == 2
    assert named == [True, True]
    assert all("without a schema cannot be read with JsonSchema" in each for each in texts)
    assert [each for each in found if each not in texts] in ([Point(1), Point(5)], [Point(5), Point(1)])


def test_a_typed_consumer_registers_on_an_idle_topic_alone(broker: Broker, client: Client) -> None:
    topic, used = broker.topic(), broker.topic()
    client.create_producer(topic).close()
    client.subscribe(topic, "s", schema=Point)
    assert [each["version"] for each in versions(broker, topic)] == [0]
    with pytest.raises(IncompatibleSchema):
        client.create_producer(topic, schema=StringSchema())
    producer = client.create_producer(used)
    with pytest.raises(IncompatibleSchema, match=r"active topic with empty\(BYTES\) schema.*the producer"):
        client.subscribe(used, "s", schema=Point)
    producer.send(b"x")
    producer.close()
    with pytest.raises(IncompatibleSchema, match="messages without a schema"):
        client.subscribe(used, "s", schema=Point)
    assert (
        client.subscribe(used, "s", schema=AutoSchema(), initial_position=EARLIEST).receive(WAIT_MS).value()
        == b"x"
    )


class Claiming(BytesSchema):
    """Writes a version that was never registered."""


def test_what_does_not_fit_its_version_fails_alone(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, schema=AvroSchema(Point))
    producer.send(Point(1))
    liar = client.create_producer(topic, producer_name="liar")
    liar._partitions[0].queue.state.schema_version = version_bytes(0)
    liar.send_many([b"", b"\x02\x02\x02"])
    liar._partitions[0].queue.state.schema_version = version_bytes(77)
    liar.send_many([b"\x02"])
    producer.send(Point(2))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Point), initial_position=EARLIEST)
    reasons: list[str] = []
    found: list[Any] = []
    for message in receive(consumer, 5):
        try:
            found.append(message.value())
        except SchemaSerializationException as error:
            reasons.append(str(error))
        consumer.acknowledge(message)
    assert found == [Point(1), Point(2)]
    assert "version 0 cannot be read" in reasons[0]
    assert "bytes follow the value" in reasons[1]
    assert "no version 77" in reasons[2]


def test_letters_keep_their_version_and_schema(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    set_policy(broker, topic, TOPIC_POLICY, "BACKWARD")
    policy = ConsumerDeadLetterPolicy(1, initial_subscription_name="looks")
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        schema=AvroSchema(Point),
        negative_ack_redelivery_delay_ms=0,
        dead_letter_policy=policy,
        enable_retry=True,
        initial_position=EARLIEST,
    )
    client.create_producer(topic, schema=AvroSchema(Point)).send(Point(1))
    client.create_producer(topic, schema=AvroSchema(WiderPoint)).send(WiderPoint(8, 2))
    for message in receive(consumer, 2):
        consumer.reconsume_later(message, timedelta(0))
    again = receive(consumer, 2)
    assert sorted(message.value().x for message in again) == [1, 2]
    assert {message.topic_name() for message in again} == {f"{topic}-s-RETRY"}
    for message in again:
        consumer.negative_acknowledge(message)
    for message in receive(consumer, 2):
        consumer.negative_acknowledge(message)
    dead = client.subscribe(f"{topic}-s-DLQ", "looks", ConsumerType.Shared, schema=AvroSchema(WiderPoint))
    found = receive(dead, 2)
    assert sorted((message.value() for message in found), key=lambda each: each.x) == [
        WiderPoint(7, 1),
        WiderPoint(8, 2),
    ]
    texts = {each["text"] for each in versions(broker, topic)}
    assert {each["text"] for each in versions(broker, f"{topic}-s-DLQ")} == texts
    dead.close()
    with broker.admin() as admin:
        assert admin.topics.redrive(f"{topic}-s-DLQ") == {topic: 2}
    assert len(versions(broker, topic)) == 2
    back = receive(consumer, 2)
    assert {message.value().x: message.schema_version() for message in back} == {
        1: "\0" * 8,
        2: "\0" * 7 + "\1",
    }


def test_many_producers_at_once_and_a_controller_that_dies_give_each_content_one_version(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    set_policy(broker, topic, TOPIC_POLICY, "ALWAYS_COMPATIBLE")
    contents = [
        AvroSchema(None, {"type": "record", "name": "R", "fields": [{"name": f"f{number}", "type": "int"}]})
        for number in range(4)
    ]
    failed: list[BaseException] = []
    barrier = threading.Barrier(9)

    def register(number: int) -> None:
        barrier.wait()
        try:
            for turn in range(4):
                content = (number + turn) % 4
                producer = client.create_producer(topic, schema=contents[content])
                producer.send({f"f{content}": number})
                producer.close()
        except BaseException as error:  # noqa: BLE001 - reported by the test
            failed.append(error)

    threads = [threading.Thread(target=register, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for _ in range(3):
        broker.cluster.kill_controller()
    for thread in threads:
        thread.join(120)
    assert failed == []
    known = versions(broker, topic)
    assert [each["version"] for each in known] == [0, 1, 2, 3]
    assert {each["text"] for each in known} == {each.schema_info().schema() for each in contents}
    broker.restart(kill=True)
    assert versions(broker, topic) == known
    consumer = broker.client().subscribe(topic, "s", schema=AutoSchema(), initial_position=EARLIEST)
    found = [message.value() for message in receive(consumer, 32)]
    assert sorted(str(each) for each in found) == sorted(
        str({f"f{content}": number}) for number in range(8) for content in range(4)
    )


@pytest.mark.parametrize("schema", [JsonSchema(Point), AvroSchema(WiderPoint), AutoSchema()], ids=str)
def test_a_message_is_read_where_it_was_pickled_to(broker: Broker, client: Client, schema: Any) -> None:
    topic = broker.topic()
    kind: Any = JsonSchema if isinstance(schema, JsonSchema) else AvroSchema
    client.create_producer(topic, schema=kind(Point)).send(Point(1))
    consumer = client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    (message,) = receive(consumer, 1)
    pickled = pickle.dumps(message), pickle.dumps([message, pickle.loads(pickle.dumps(message))])
    consumer.acknowledge(pickle.loads(pickled[0]))
    client.close()
    first, [second, third] = map(pickle.loads, pickled)
    assert first.value() == second.value() == third.value() == message.value()
    assert first.message_id() == message.message_id()


def test_a_topic_that_was_made_anew_has_its_own_versions(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic, schema=AvroSchema(Point)).send(Point(1))
    consumer = client.subscribe(topic, "s", schema=AutoSchema(), initial_position=EARLIEST)
    assert receive(consumer, 1)[0].value() == {"x": 1}
    with broker.admin() as admin:
        admin.topics.delete(topic, force=True)
    other = broker.client()
    other.create_producer(topic, schema=AvroSchema(WiderPoint)).send(WiderPoint(1, 2))
    # The first consumer follows its topic, and has its place in the new one sooner or later.
    again = other.subscribe(topic, "t", schema=AutoSchema(), initial_position=EARLIEST)
    assert receive(again, 1)[0].value() == {"y": 1, "x": 2}


def test_a_topic_of_several_that_was_made_anew_is_read_by_its_own_versions(
    broker: Broker, client: Client
) -> None:
    def record(*names: str) -> Any:
        return type("Pair", (Record,), {name: Integer(required=True) for name in names})

    first, other = record("a", "b"), record("b", "a")
    topics = [broker.topic(), broker.topic()]
    consumer = client.subscribe(
        topics, "s", schema=AvroSchema(first), initial_position=EARLIEST, pattern_auto_discovery_period=1
    )
    client.create_producer(topics[0], schema=AvroSchema(first)).send(first(a=1, b=2))
    assert receive(consumer, 1)[0].value() == first(a=1, b=2)
    with broker.admin() as admin:
        admin.topics.delete(topics[0], force=True)
    broker.client().create_producer(topics[0], schema=AvroSchema(other)).send(other(a=1, b=2))
    assert receive(consumer, 1)[0].value() == first(a=1, b=2)


def test_large_values_in_chunks_and_non_persistent_topics_are_typed_too(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(
        topic, schema=Reading, chunking_enabled=True, chunk_max_message_size=10_000
    )
    large = Reading("a" * 50_000)
    producer.send(large)
    consumer = client.subscribe(topic, "s", schema=Reading, initial_position=EARLIEST)
    (message,) = receive(consumer, 1)
    assert message.value() == large
    assert message.schema_version() == "\0" * 8
    unstored = f"non-persistent://public/default/unstored-{topic[-6:].strip('/')}"
    listens = client.subscribe(unstored, "s", schema=Point)
    sends = client.create_producer(unstored, schema=Point)
    sends.send(Point(3))
    assert receive(listens, 1)[0].value() == Point(3)


def test_schemas_of_ones_own_work_and_bad_ones_are_refused(broker: Broker, client: Client) -> None:
    class Hex(Schema):
        def __init__(self) -> None:
            super().__init__(int, StringSchema().schema_info().schema_type(), None, "HEX")

        def encode(self, obj: Any) -> bytes:
            return f"{obj:x}".encode()

        def decode(self, data: bytes) -> Any:
            return int(data, 16)

    topic = broker.topic()
    client.create_producer(topic, schema=Hex()).send(255)
    consumer = client.subscribe(topic, "s", schema=Hex(), initial_position=EARLIEST)
    assert receive(consumer, 1)[0].value() == 255
    with pytest.raises(InvalidConfiguration, match="AutoSchema is for consumers"):
        client.create_producer(broker.topic(), schema=AutoSchema())
    for wrong in (None, Order, int, "json", Point(1)):
        with pytest.raises(ValueError, match="schema"):
            client.create_producer(broker.topic(), schema=wrong)
    wide = {
        "type": "record",
        "name": "W",
        "fields": [{"name": f"f{number}", "type": "int"} for number in range(25_000)],
    }
    with pytest.raises(IncompatibleSchema, match="at most 524288 are kept"):
        client.create_producer(broker.topic(), schema=AvroSchema(None, wide))


def test_a_pattern_passes_by_topics_of_another_type(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic, schema=StringSchema()).send("x")
    with pytest.raises(PulsarException, match="STRING"):
        client.subscribe(re.compile(re.escape(topic)), "s", schema=Point)
