"""Measure what types cost: columns against bytes of the same size, single values against their libraries."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.measure import Slices, alternate, p50, us
from benchmarks.measuring.results import Row
from pulsar_ray.schema import ArrowSchema, AutoSchema, AvroSchema, BytesSchema, JsonSchema, Schema

ROWS = 8_000
NAME_BYTES = 76
ROW_BYTES = NAME_BYTES + 3 * 8
OUTSTANDING = 3
VALUES = 200
DEFINITION = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
ORDER: dict[str, Any] = {
    "id": 7,
    "item": "a book of some pages",
    "price": 19.5,
    "tags": ["new", "blue"],
    "note": None,
}
COLUMNS = pa.schema(
    [("id", pa.int64()), ("price", pa.float64()), ("at", pa.timestamp("us", "UTC")), ("name", pa.string())]
)


@dataclass
class Order:
    """The same as a class."""

    id: int
    item: str
    price: float
    tags: list[str]
    note: str | None = None


def run(env: Environment) -> list[Row]:
    """Compare by turns; the last rows need no broker."""
    rows = []
    with env.broker(tmpfs=True) as broker:
        rows += _columns(broker, env.count(40, 5))
    return [*rows, *_values(env.count(60, 10))]


def _tables() -> dict[str, tuple[Schema, pa.Table]]:
    """Rows of 100 B, as columns and as bytes."""
    letters = np.random.default_rng(1).integers(97, 123, ROWS * NAME_BYTES, dtype=np.uint8).tobytes()
    names = [letters[place * NAME_BYTES : (place + 1) * NAME_BYTES].decode() for place in range(ROWS)]
    ids = np.arange(ROWS)
    columns = pa.table([ids, ids * 0.5, ids, names], schema=COLUMNS)
    data = os.urandom(ROWS * ROW_BYTES)
    values = [data[place * ROW_BYTES : (place + 1) * ROW_BYTES] for place in range(ROWS)]
    return {
        "columns": (ArrowSchema(COLUMNS), columns),
        "bytes": (BytesSchema(), pa.table({"value": pa.array(values, pa.binary())})),
    }


def _columns(broker: Broker, rounds: int) -> list[Row]:
    tables = _tables()
    topics = {name: broker.topic() for name in tables}
    batches = 16
    size = batches * ROWS * ROW_BYTES
    producers = {
        name: broker.client.create_producer(topics[name], schema=schema)
        for name, (schema, _) in tables.items()
    }

    def publish(name: str) -> None:
        room, table = threading.Semaphore(OUTSTANDING), tables[name][1]
        for _ in range(batches):
            room.acquire()
            producers[name].send_arrow_async(table, lambda *_: room.release())
        for _ in range(OUTSTANDING):
            room.acquire()

    works = {name: (size, partial(publish, name)) for name in tables}
    consumers = {
        name: broker.client.subscribe(topics[name], "bench", schema=schema)
        for name, (schema, _) in tables.items()
    }
    published = Slices(works, broker.meter(topics["columns"]), rounds)

    left = dict.fromkeys(tables, 0)

    def receive(name: str) -> None:
        left[name] += batches * ROWS
        while left[name] > 0:
            table = consumers[name].receive_arrow(100_000, 20_000)
            consumers[name].acknowledge_arrow(table)
            left[name] -= table.num_rows

    works = {name: (size, partial(receive, name)) for name in tables}
    received = Slices(works, broker.meter(topics["columns"], "bench"), rounds)
    for opened in (*producers.values(), *consumers.values()):
        opened.close()
    return [
        Row(
            f"{what} of 4 columns, {ROW_BYTES} B, {ROWS:,} each",
            slices.text("columns"),
            f"bytes of the same size {slices.text('bytes')}",
            slices.ratio("bytes"),
            0.8,
            cpu_us=slices.cpu_us(batches * ROWS),
        )
        for what, slices in (("send_arrow of rows", published), ("receive_arrow of rows", received))
    ]


def _values(rounds: int) -> list[Row]:
    parsed: Any = fastavro.parse_schema(DEFINITION)

    def write_avro() -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, ORDER)
        return stream.getvalue()

    avro, text = write_avro(), json.dumps(ORDER).encode()
    of_dicts, of_class = AvroSchema(None, DEFINITION), JsonSchema(Order)
    registered = of_dicts.registered()
    read_avro = of_dicts.reading(registered)
    read_json = of_class.reading(of_class.registered())
    order = Order(**ORDER)
    plain_text = of_class.encode(order)

    def read_order() -> Order:
        return Order(**json.loads(plain_text))

    return [
        _compared("encode Avro", lambda: of_dicts.encode(ORDER), "fastavro", write_avro, rounds),
        _compared(
            "decode Avro by the writer's version",
            lambda: read_avro(avro),
            "fastavro",
            lambda: fastavro.schemaless_reader(io.BytesIO(avro), parsed, parsed),
            rounds,
        ),
        _compared(
            "encode a dataclass as JSON",
            lambda: of_class.encode(order),
            "json.dumps with its indent",
            lambda: json.dumps(vars(order), indent=1).encode(),
            rounds,
        ),
        _compared(
            "decode JSON to a dataclass", lambda: read_json(plain_text), "json.loads", read_order, rounds
        ),
        _compared(
            "decode JSON to a dict", lambda: _auto(text), "json.loads", lambda: json.loads(text), rounds
        ),
    ]


_AUTO = AutoSchema()
_auto = _AUTO.reading(JsonSchema(Order).registered())


def _compared(what: str, ours: Callable[[], Any], name: str, alone: Callable[[], Any], rounds: int) -> Row:
    def many(work: Callable[[], Any]) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(VALUES):
                work()

        return repeat

    times = alternate({"ours": many(ours), "alone": many(alone)}, rounds, warm_up=3)
    ratio = p50([other / own for own, other in zip(times["ours"], times["alone"], strict=True)])
    own, other = (p50(times[each]) / VALUES for each in ("ours", "alone"))
    return Row(what, us(own), f"{name} {us(other)}", ratio, 1 / 1.2)
