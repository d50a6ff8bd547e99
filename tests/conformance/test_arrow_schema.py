"""Topics of rows: columns go in and come out as columns, and single values as dicts or objects."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.errors import IncompatibleSchema, MessageTooBig, SchemaSerializationException, Timeout
from pulsar_ray.format.columnar import row_of_bytes
from pulsar_ray.format.metadata import encode_producer_fields
from pulsar_ray.model.enums import BatchingType, CompressionType, ConsumerType
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_schema import version_bytes
from pulsar_ray.schema import ArrowSchema, AutoSchema, JsonSchema
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, receive
from tests.conformance.event_loop import on_a_loop

UTC = datetime.timezone.utc
NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 123456, UTC)

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("state", pa.dictionary(pa.int8(), pa.string())),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field(
            "lines", pa.list_(pa.struct([pa.field("item", pa.string()), pa.field("count", pa.int32())]))
        ),
        pa.field("notes", pa.map_(pa.string(), pa.string())),
    ]
)


def order(number: int, **given: Any) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"c{number % 3}",
        "state": ("new", "paid")[number % 2],
        "at": NOON,
        "price": Decimal("19.90"),
        "lines": [{"item": "pen", "count": number}, {"item": "book", "count": None}],
        "notes": {"ü": "é"},
        **given,
    }


def orders(*numbers: int) -> pa.Table:
    rows = [{**order(number), "notes": [("ü", "é")]} for number in numbers]
    return pa.Table.from_pylist(rows, schema=ORDERS)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_a_table_comes_out_with_the_columns_that_went_in(
    make_broker: Callable[..., Broker], codec: CompressionType
) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    client, topic = broker.client(), broker.topic()
    schema = ArrowSchema(ORDERS, key="customer", event_time="at")
    consumer = client.subscribe(
        topic,
        "s",
        schema=ArrowSchema(ORDERS),
        initial_position=EARLIEST,
        batch_index_ack_enabled=True,
    )
    sent = orders(*range(2000))
    client.create_producer(topic, schema=schema, compression_type=codec).send_arrow(sent)
    table = _tables(consumer, 2000)
    assert table.select(ORDERS.names).equals(sent)
    assert table.column("key").to_pylist()[:4] == ["c0", "c1", "c2", "c0"]
    assert table.column("event_time")[0].as_py() == NOON.replace(microsecond=123000)
    assert not any(table.column("tombstone").to_pylist())
    consumer.acknowledge_arrow(table.slice(0, 1500))
    consumer.close()
    again = client.subscribe(topic, "s", schema=ArrowSchema(ORDERS), batch_index_ack_enabled=True)
    assert _tables(again, 500).column("id").to_pylist() == list(range(1500, 2000))


def _tables(consumer: Any, rows: int) -> pa.Table:
    found: list[pa.Table] = []
    while sum(table.num_rows for table in found) < rows:
        found.append(consumer.receive_arrow(timeout_millis=WAIT_MS))
    return pa.concat_tables(found)


@pytest.mark.parametrize("batching", [True, False])
def test_rows_are_sent_and_read_one_by_one(broker: Broker, client: Client, batching: bool) -> None:
    topic = broker.topic()
    schema = ArrowSchema(ORDERS)
    consumer = client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    producer = client.create_producer(topic, schema=schema, batching_enabled=batching)
    for number in range(4):
        producer.send_async(order(number), None, partition_key=f"k{number}", event_timestamp=1000 + number)
    producer.send_async(None, None, partition_key="gone")
    producer.send_async(order(4, customer=None, lines=None, state=None), None)
    producer.flush()
    messages = [consumer.receive(WAIT_MS) for _ in range(6)]
    assert [message.value() for message in messages] == [
        *map(order, range(4)),
        None,
        order(4, customer=None, lines=None, state=None),
    ]
    assert [message.has_null_value() for message in messages] == [False] * 4 + [True, False]
    assert [message.partition_key() for message in messages] == ["k0", "k1", "k2", "k3", "gone", ""]
    assert messages[3].event_timestamp() == 1003
    consumer.redeliver_unacknowledged_messages()
    table = _tables(consumer, 6)
    assert table.column("tombstone").to_pylist() == [False] * 4 + [True, False]
    assert table.column("id").to_pylist() == [0, 1, 2, 3, None, 4]
    assert table.column("key").to_pylist()[4] == "gone"
    consumer.acknowledge_arrow(table)


def test_a_received_table_can_be_sent_on(broker: Broker, client: Client) -> None:
    schema, topic, other = ArrowSchema(ORDERS), broker.topic(), broker.topic()
    first = client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    second = client.subscribe(other, "s", schema=schema, initial_position=EARLIEST)
    with_tombstone = orders(1, 2, 3).append_column("tombstone", pa.array([False, True, False]))
    producer = client.create_producer(topic, schema=schema)
    producer.send_arrow(with_tombstone.append_column("key", pa.array(["x", "y", "z"])))
    client.create_producer(other, schema=schema).send_arrow(_tables(first, 3))
    values = [
        (message.partition_key(), message.value()) for message in (second.receive(WAIT_MS) for _ in range(3))
    ]
    assert values == [("x", order(1)), ("y", None), ("z", order(3))]


NAMED = pa.schema([pa.field("key", pa.int64()), pa.field("topic", pa.string())])


def test_columns_may_be_called_like_those_of_messages(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker(acknowledgment_at_batch_index_level_enabled=True)
    client, topic = broker.client(), broker.topic()
    consumer = client.subscribe(
        topic,
        "s",
        schema=ArrowSchema(NAMED),
        initial_position=EARLIEST,
        batch_index_ack_enabled=True,
    )
    table = pa.table(
        {"key": [1, 2], "topic": ["a", "b"], "__key": ["k", "l"]},
        schema=NAMED.append(pa.field("__key", pa.string())),
    )
    client.create_producer(topic, schema=ArrowSchema(NAMED)).send_arrow(table)
    found = _tables(consumer, 2)
    assert found.select(["key", "topic", "__key"]).equals(table)
    assert found.column("__topic")[0].as_py().endswith(topic)
    consumer.acknowledge_arrow(found.slice(0, 1))
    consumer.close()
    again = client.subscribe(topic, "s", schema=ArrowSchema(NAMED), batch_index_ack_enabled=True)
    assert again.receive(WAIT_MS).value() == {"key": 2, "topic": "b"}


def test_those_without_the_schema_read_dicts_or_bytes(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, schema=ArrowSchema(ORDERS))
    producer.send_arrow(orders(1, 2))
    producer.send(order(3))
    audit = client.subscribe(topic, "audit", schema=AutoSchema(), initial_position=EARLIEST)
    assert [message.value() for message in receive(audit, 3)] == [order(1), order(2), order(3)]
    plain = client.subscribe(topic, "plain", initial_position=EARLIEST)
    payloads = [message.data() for message in receive(plain, 3)]
    for number, payload in enumerate(payloads, 1):
        (row,) = row_of_bytes(payload, ORDERS).to_pylist()
        assert row["id"] == number
    table = client.subscribe(topic, "table", initial_position=EARLIEST)
    assert _tables(table, 3).column("value").to_pylist() == payloads


WIDER = pa.schema(
    [
        pa.field("note", pa.string()),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("customer", pa.large_string()),
        pa.field(
            "lines", pa.list_(pa.struct([pa.field("count", pa.int64()), pa.field("colour", pa.string())]))
        ),
    ]
)


def test_old_rows_are_read_with_a_newer_schema(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic, schema=ArrowSchema(ORDERS)).send_arrow(orders(1, 2))
    client.admin().policies.set_topic("t", schema_compatibility_strategy="BACKWARD") if hasattr(
        client, "admin"
    ) else None
    consumer = client.subscribe(topic, "s", schema=ArrowSchema(WIDER), initial_position=EARLIEST)
    lines = [{"count": 1, "colour": None}, {"count": None, "colour": None}]
    assert consumer.receive(WAIT_MS).value() == {"note": None, "id": 1, "customer": "c1", "lines": lines}
    consumer.redeliver_unacknowledged_messages()
    table = _tables(consumer, 2)
    assert table.schema.names[:4] == WIDER.names
    assert table.column("note").null_count == 2


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Purchase:
    number: int
    lines: list[Line]
    price: Annotated[Decimal, pa.decimal128(12, 2)] = Decimal(0)
    note: str | None = None


def test_a_dataclass_has_columns(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    schema = ArrowSchema(Purchase, key="number")
    consumer = client.subscribe(topic, "s", schema=ArrowSchema(Purchase), initial_position=EARLIEST)
    producer = client.create_producer(topic, schema=schema, batching_enabled=True)
    sent: list[Any] = [Purchase(7, [Line("pen", 2)], Decimal("1.50")), Purchase(8, [], note="blue")]
    producer.send_many(sent)
    messages = receive(consumer, 2)
    assert [message.value() for message in messages] == sent
    assert [message.partition_key() for message in messages] == ["7", "8"]
    with pytest.raises(TypeError, match="Invalid type str for column 'number' of type int64"):
        producer.send(Purchase("7", []))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is None, and may not be"):
        producer.send(Purchase(1, [], None))  # type: ignore[arg-type]


@on_a_loop
async def test_the_asyncio_client_does_the_same(broker: Broker) -> None:
    topic = broker.topic()
    async with broker.asyncio_client() as client:
        schema = ArrowSchema(ORDERS, key="customer")
        producer = await client.create_producer(topic, schema=schema)
        consumer = await client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
        await producer.send(order(1))
        await producer.send_arrow(orders(2, 3))
        message = await consumer.receive()
        assert (message.value(), message.partition_key()) == (order(1), "c1")
        table = await consumer.receive_arrow()
        assert set(table.column("id").to_pylist()) <= {2, 3}
        await consumer.acknowledge_arrow(table)


@pytest.mark.parametrize("batching_type", [BatchingType.Default, BatchingType.KeyBased])
def test_rows_go_by_their_keys(broker: Broker, client: Client, batching_type: BatchingType) -> None:
    topic = broker.topic(partitions=2)
    schema = ArrowSchema(ORDERS, key="customer")
    first, second = (
        client.subscribe(
            topic, "s", schema=schema, consumer_type=ConsumerType.KeyShared, initial_position=EARLIEST
        )
        for _ in range(2)
    )
    producer = client.create_producer(
        topic, schema=schema, batching_enabled=True, batching_type=batching_type
    )
    producer.send_arrow(orders(*range(30)))
    for number in range(30, 60):
        producer.send_async(order(number), None)
    producer.flush()
    by_key: dict[str, list[int]] = {}
    by_consumer: dict[tuple[str, int], list[int]] = {}

    def take() -> bool:
        for index, consumer in enumerate((first, second)):
            try:
                table = consumer.receive_arrow(timeout_millis=50)
            except Timeout:
                continue
            rows = (table[name].to_pylist() for name in ("id", "key", "customer"))
            for number, key, customer in zip(*rows, strict=True):
                assert key == customer
                by_key.setdefault(key, []).append(number)
                by_consumer.setdefault((key, index), []).append(number)
            consumer.acknowledge_arrow(table)
        return sum(map(len, by_key.values())) >= 60

    wait_until(take, what="all rows")
    every = {f"c{rest}": list(range(rest, 60, 3)) for rest in range(3)}
    if batching_type is BatchingType.KeyBased:
        assert by_key == every
    else:
        # A batch of several keys goes where its first one belongs: each consumer has order, and no key has.
        assert {key: sorted(found) for key, found in by_key.items()} == every
        assert all(found == sorted(found) for found in by_consumer.values())


def test_copies_and_letters_keep_rows_readable(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    schema = ArrowSchema(ORDERS)
    client.create_producer(topic, schema=schema).send_arrow(orders(1, 2))
    policy = ConsumerDeadLetterPolicy(max_redeliver_count=1)
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        schema=schema,
        initial_position=EARLIEST,
        dead_letter_policy=policy,
        negative_ack_redelivery_delay_ms=10,
    )
    letters = client.subscribe(f"{topic}-s-DLQ", "l", schema=schema, initial_position=EARLIEST)

    def fail_all() -> bool:
        try:
            consumer.negative_acknowledge(consumer.receive(50))
        except Timeout:
            pass
        try:
            found.append(letters.receive(50))
        except Timeout:
            pass
        return len(found) == 2

    found: list[Any] = []
    wait_until(fail_all, what="both letters")
    assert sorted(message.value()["id"] for message in found) == [1, 2]
    letters.redeliver_unacknowledged_messages()
    table = _tables(letters, 2)
    assert table.select(ORDERS.names).sort_by("id").equals(orders(1, 2))


def test_tables_are_cut_and_rows_too_large_refused(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    schema = ArrowSchema(pa.schema([("text", pa.string()), ("kind", pa.dictionary(pa.int32(), pa.string()))]))
    consumer = client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    producer = client.create_producer(topic, schema=schema)
    kinds = pa.array([f"kind-{number:06d}" for number in range(20_000)]).dictionary_encode()
    sent = pa.table({"text": [f"{number:0300d}" for number in range(20_000)], "kind": kinds})
    producer.send_arrow(sent)
    table = _tables(consumer, 20_000)
    assert table.select(["text", "kind"]).to_pydict() == sent.to_pydict()
    large = pa.table({"text": ["x" * 6_000_000], "kind": pa.array(["a"]).dictionary_encode()})
    with pytest.raises(MessageTooBig):
        producer.send_arrow(large)
    with pytest.raises(MessageTooBig):
        producer.send({"text": "x" * 6_000_000, "kind": "a"})
    chunking = client.create_producer(topic, schema=schema, chunking_enabled=True, producer_name="c")
    chunking.send({"text": "x" * 6_000_000, "kind": "a"})
    chunking.send_arrow(large)
    assert [len(message.value()["text"]) for message in receive(consumer, 2)] == [6_000_000] * 2
    consumer.redeliver_unacknowledged_messages()


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ({"id": "1"}, TypeError, "Invalid type str for column 'id' of type int64: expected int"),
        ({"id": True}, TypeError, "Invalid type bool for column 'id'"),
        ({"id": 1.5}, TypeError, "Invalid type float for column 'id'"),
        ({"id": 2**63}, ValueError, "out of the range of column 'id' of type int64"),
        ({"id": None}, TypeError, "Column 'id' of type int64 has no nulls"),
        ({}, TypeError, "Column 'id' of type int64 has no nulls"),
        ({"id": 1, "zz": 2}, ValueError, "There is no column 'zz'"),
        ({"id": 1, "at": NOON.replace(tzinfo=None)}, ValueError, "has no time zone"),
        ({"id": 1, "at": "2026-01-01"}, TypeError, "expected datetime"),
        ({"id": 1, "price": 1.5}, TypeError, "expected Decimal"),
        ({"id": 1, "price": Decimal("1.234")}, ValueError, "does not fit column 'price'"),
        ({"id": 1, "price": Decimal("1E20")}, ValueError, "does not fit column 'price'"),
        ({"id": 1, "lines": [{"item": 5}]}, TypeError, r"'lines\[0\].item' of type string"),
        ({"id": 1, "lines": [{"itm": "x"}]}, ValueError, r"There is no column 'lines\[0\].itm'"),
        ({"id": 1, "lines": {"item": "x"}}, TypeError, "expected a list"),
        ({"id": 1, "notes": {"a": 5}}, TypeError, r"column \"notes\['a'\]\""),
        ({"id": 1, "customer": "\ud800"}, ValueError, "is no UTF-8"),
        ([1], TypeError, "A row is a dict with id, customer"),
    ],
)
def test_values_that_do_not_fit_are_refused_where_they_are_given(value: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        ArrowSchema(ORDERS).encode(value)


NO_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"id": pa.array([1, None])}, "column 'id' of type int64 is null in row 1"),
        ({"customer": pa.array(["a"])}, "column 'id' of type int64 is null in row 0"),
        ({"id": pa.array(["x"])}, "column 'id' of type string cannot be made int64"),
        (
            {"id": pa.array([1]), "zz": pa.array([1])},
            "column 'zz' of type int64 is no column of this topic's",
        ),
        ({"id": pa.array([1]), "price": pa.array(["a"])}, "column 'price' of type string"),
        ({"id": pa.array([1]), "key": pa.array([1.5])}, "column 'key'"),
        ({"id": pa.array([1]), "customer": NO_TEXT}, "column 'customer' of type string is no valid Arrow"),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    broker: Broker, client: Client, table: dict[str, Any], said: str
) -> None:
    producer = client.create_producer(broker.topic(), schema=ArrowSchema(ORDERS))
    with pytest.raises(ValueError, match=said):
        producer.send_arrow(pa.table(table))


def test_versions_follow_the_strategy(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    client.create_producer(topic, schema=ArrowSchema(ORDERS))
    fields = {field.name: field for field in ORDERS}
    more = ORDERS.append(pa.field("note", pa.string()))
    client.create_producer(topic, schema=ArrowSchema(more))
    client.create_producer(topic, schema=ArrowSchema(pa.schema([fields["customer"], fields["id"]])))
    changed = pa.schema([fields["id"], pa.field("customer", pa.int64())])
    required = pa.schema([fields["id"], pa.field("new", pa.int64(), nullable=False)])
    for schema, said in (
        (changed, "field 'customer': string cannot be read as int64"),
        (required, "field 'new': what was written has no such column, and it has no nulls"),
        (pa.schema([fields["customer"]]), "field 'id'"),
    ):
        with pytest.raises(IncompatibleSchema, match=said):
            client.create_producer(topic, schema=ArrowSchema(schema))
    with pytest.raises(IncompatibleSchema, match="ARROW cannot be read as JSON"):
        client.create_producer(topic, schema=JsonSchema(Purchase2))
    with broker.admin() as admin:
        assert [version.version for version in admin.schemas.versions(topic)] == [0, 1, 2]


@dataclass
class Purchase2:
    id: int


def _making_up(client: Client, topic: str) -> Producer:
    """A producer of bytes that claims the topic's first version for them."""
    bad = client.create_producer(topic)
    state = bad._partitions[0].queue.state
    state.schema_version = version_bytes(0)
    state._encoded_fields = encode_producer_fields(state.producer_name, version_bytes(0))
    return bad


def test_what_does_not_fit_its_version_is_an_error_and_the_consumer_goes_on(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    schema = ArrowSchema(ORDERS)
    producer = client.create_producer(topic, schema=schema)
    bad = _making_up(client, topic)
    consumer = client.subscribe(topic, "s", schema=schema, initial_position=EARLIEST)
    tables = client.subscribe(topic, "t", schema=schema, initial_position=EARLIEST)
    producer.send(order(1))
    bad.send(b"no row")
    producer.send(order(2))
    first, second, third = receive(consumer, 3)
    assert (first.value()["id"], third.value()["id"]) == (1, 2)
    with pytest.raises(SchemaSerializationException, match="version 0"):
        second.value()
    consumer.acknowledge(second)
    numbers: list[int] = []
    errors: list[SchemaSerializationException] = []

    def take() -> bool:
        try:
            table = tables.receive_arrow(timeout_millis=50)
        except SchemaSerializationException as error:
            errors.append(error)
            tables.acknowledge(error.message_id)
        except Timeout:
            pass
        else:
            numbers.extend(table.column("id").to_pylist())
            tables.acknowledge_arrow(table)
        return len(numbers) == 2

    wait_until(take, what="what can be read")
    assert (numbers, len(errors)) == ([1, 2], 1)


@pytest.mark.parametrize(
    "go_back",
    [lambda consumer: consumer.seek(MessageId.earliest), Consumer.redeliver_unacknowledged_messages],
    ids=["seek", "redelivery"],
)
def test_rows_behind_those_that_do_not_fit_wait_like_any_others(
    broker: Broker, client: Client, go_back: Callable[[Consumer], None]
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic, schema=ArrowSchema(ORDERS))
    consumer = client.subscribe(topic, "s", schema=ArrowSchema(ORDERS), initial_position=EARLIEST)
    producer.send(order(1))
    _making_up(client, topic).send(b"no row")
    producer.send(order(2))

    def take_to_the_end() -> list[Any]:
        taken: list[Any] = []
        while consumer.has_message_available():
            try:
                taken += consumer.receive_arrow(timeout_millis=WAIT_MS).column("id").to_pylist()
            except SchemaSerializationException:
                taken.append("no row")
        return taken

    wait_until(lambda: len(consumer.core.queue.deliveries) == 3, what="all is here")
    assert consumer.receive_arrow().column("id").to_pylist() == [1]
    assert consumer.has_message_available()
    go_back(consumer)
    assert take_to_the_end() == [1, "no row", 2]
