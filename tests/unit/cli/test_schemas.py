"""`pulsar-ray schemas`, and typed values in `produce`, `consume` and `peek-messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pulsar_ray.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.errors import IncompatibleSchema, SchemaNotFound
from pulsar_ray.model.enums import InitialPosition
from pulsar_ray.schema import AvroSchema, JsonSchema, StringSchema, TopicSchema
from pulsar_ray.testing.stub_cluster import StubCluster
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget


@dataclass
class Order:
    item: str
    count: int = 1
    raw: bytes = b""


class StubTarget(FakeTarget):
    """A target whose broker is in this process."""

    def __init__(self, cluster: StubCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def client(self) -> Client:
        return Client._on(self._cluster)

    def admin(self) -> Admin:
        return Admin._on(self._cluster)

    @contextmanager
    def asked(self) -> Iterator[Admin]:
        with self.admin() as admin:
            yield admin


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StubCluster]:
    cluster = StubCluster(tmp_path / "data")
    yield cluster
    cluster.close()


@pytest.fixture
def target(cluster: StubCluster) -> StubTarget:
    return StubTarget(cluster)


def test_an_administrator_uploads_tests_lists_and_deletes(target: StubTarget) -> None:
    with target.admin() as admin:
        schemas = admin.schemas
        with pytest.raises(SchemaNotFound):
            schemas.get("orders")
        assert schemas.versions("orders") == []
        assert schemas.test("orders", Order).is_compatible
        assert schemas.upload("orders", Order) == 0
        assert schemas.upload("orders", JsonSchema(Order)) == 0
        found = schemas.get("orders", 0)
        assert found == schemas.get("orders") == schemas.versions("orders")[0]
        assert found.schema.text == JsonSchema(Order).schema_info().schema()
        assert "an administrator of process" in found.registered_by
        refused = schemas.test("orders", AvroSchema(Order))
        assert (refused.is_compatible, refused.strategy, refused.version) == (False, "FULL", None)
        assert "JSON cannot be read as AVRO" in refused.reason
        with pytest.raises(IncompatibleSchema):
            schemas.upload("orders", AvroSchema(Order))
        for wrong in (None, "AVRO", int):
            with pytest.raises(ValueError, match="schema"):
                schemas.upload("orders", wrong)
        assert schemas.delete("orders") == 1
        assert schemas.delete("orders") is None
        assert schemas.upload("orders", TopicSchema("STRING", "")) == 2
        assert [each.version for each in schemas.versions("orders")] == [2]


def test_the_commands_do_the_same(run: Run, target: StubTarget, tmp_path: Path) -> None:
    definition = tmp_path / "order.avsc"
    definition.write_text(AvroSchema(Order).schema_info().schema())
    whole = json.dumps(
        {"type": "AVRO", "schema": {"type": "record", "name": "R", "fields": []}, "properties": {}}
    )
    assert run(target, "schemas", "test", "orders", str(definition)).stdout.startswith(
        "fits by the strategy FULL"
    )
    assert run(target, "schemas", "upload", "orders", str(definition)).stdout == "version 0\n"
    assert run(target, "schemas", "test", "orders", str(definition)).stdout.endswith("it is version 0\n")
    refused = run(target, "schemas", "test", "orders", input=whole)
    assert refused.exit_code == 1
    assert "field 'item'" in refused.stdout
    assert run(target, "schemas", "upload", "orders", input=whole).exit_code == 1
    listed = run(target, "schemas", "versions", "orders").stdout
    assert listed.startswith("0  AVRO  ")
    shown = json.loads(run(target, "schemas", "get", "orders").stdout)
    assert (shown["version"], shown["type"], shown["schema"]["name"]) == (0, "AVRO", "Order")
    assert json.loads(run(target, "schemas", "versions", "orders", "--json").stdout) == shown
    assert run(target, "schemas", "delete", "orders").stdout == "deleted, as version 1\n"
    assert run(target, "schemas", "get", "orders").exit_code == 1
    assert json.loads(run(target, "schemas", "get", "orders", "-v", "0").stdout) == shown
    assert run(target, "schemas", "delete", "orders", "--force").exit_code == 0


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_typed_values_are_sent_and_printed_as_json(run: Run, target: StubTarget, kind: type) -> None:
    with target.client() as client:
        client.subscribe("orders", "s", initial_position=InitialPosition.Earliest).close()
        client.create_producer("orders", schema=kind(Order)).send(Order("book", 2))
    lines = '{"item": "pen", "count": 3, "raw": "r"}\n'
    sent = run(target, "produce", "orders", "--typed", input=lines)
    assert sent.exit_code == 0, sent.stderr
    wrong = run(target, "produce", "orders", "--typed", input='{"count": 3}\n')
    assert wrong.exit_code == 1
    assert "line 1" in wrong.stderr
    peeked = json.loads(run(target, "topics", "peek-messages", "orders", "-s", "s").stdout)
    assert peeked["value"] == {"item": "book", "count": 2, "raw": ""}
    assert peeked["schema_version"] == 0
    printed = run(target, "consume", "orders", "-s", "s", "--no-follow").stdout
    assert [json.loads(line)["item"] for line in printed.splitlines()] == ["book", "pen"]


MEASURE = {
    "type": "record",
    "name": "Measure",
    "fields": [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {
            "name": "at",
            "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
            "default": None,
        },
        {"name": "count", "type": "int", "default": 0},
        {"name": "raw", "type": "bytes", "default": "\u0001"},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}, "default": "ab"},
        {
            "name": "part",
            "type": [
                {"type": "record", "name": "One", "fields": [{"name": "one", "type": "bytes"}]},
                {"type": "record", "name": "Two", "fields": [{"name": "two", "type": "bytes"}]},
            ],
            "default": {"one": "x"},
        },
    ],
}


def test_typed_values_go_in_as_they_were_printed(run: Run, target: StubTarget) -> None:
    with target.client() as client:
        client.subscribe("measures", "s", initial_position=InitialPosition.Earliest).close()
        client.create_producer("measures", schema=AvroSchema(None, MEASURE)).close()
    whole = {
        "price": "1.23",
        "at": "2024-01-01 00:00:00+00:00",
        "count": 3,
        "raw": "r",
        "code": "cd",
        "part": {"two": "t"},
    }
    lines = json.dumps(whole) + '\n{"price": 4.5}\n'
    assert run(target, "produce", "measures", "--typed", input=lines).exit_code == 0
    printed = run(target, "consume", "measures", "-s", "s", "--no-follow").stdout.splitlines()
    assert json.loads(printed[0]) == whole
    assert json.loads(printed[1]) == {
        "price": "4.50",
        "at": None,
        "count": 0,
        "raw": "\x01",
        "code": "ab",
        "part": {"one": "x"},
    }


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"price": "much"}', "'much' is no number for the field 'price'"),
        ('{"price": 1, "at": "noon"}', "'noon' is no time for the field 'at': give ISO 8601"),
        ('{"price": 1, "count": 1.5}', "Measure.count is <1.5>"),
        pytest.param("[" * 100_000, "recursion depth", id="deep"),
        ('{"price": 1, "count": 1099511627776}', "Measure.count"),
    ],
)
def test_a_typed_value_that_does_not_fit_is_not_sent(
    run: Run, target: StubTarget, line: str, named: str
) -> None:
    with target.client() as client:
        client.create_producer("measures", schema=AvroSchema(None, MEASURE)).close()
    refused = run(target, "produce", "measures", "--typed", input=line)
    assert refused.exit_code == 1
    assert "line 1 has no value of the schema" in refused.stderr
    assert named in refused.stderr


def test_a_schema_that_is_nested_too_deep_is_refused_in_one_line(run: Run, target: StubTarget) -> None:
    refused = run(target, "schemas", "upload", "orders", input="[" * 100_000)
    assert refused.exit_code == 1
    assert isinstance(refused.exception, SystemExit)
    assert refused.stderr.startswith("Error: ")


def test_a_refusal_of_a_long_value_is_short(run: Run, target: StubTarget) -> None:
    with target.client() as client:
        client.create_producer("orders", schema=JsonSchema(Order)).close()
    line = json.dumps({"item": "x", "count": "9" * 10_000})
    refused = run(target, "produce", "orders", "--typed", input=line).stderr
    assert "Order.count is <999" in refused
    assert "expected long" in refused
    assert len(refused) < 1000


def test_what_has_a_default_may_be_left_out_of_typed_values(run: Run, target: StubTarget) -> None:
    with target.client() as client:
        client.subscribe("orders", "s", initial_position=InitialPosition.Earliest).close()
        client.create_producer("orders", schema=JsonSchema(Order)).close()
        sent = run(target, "produce", "orders", "--typed", input='{"item": "pen"}\n')
        assert sent.exit_code == 0, sent.stderr
        consumer = client.subscribe("orders", "s", schema=Order)
        assert consumer.receive(timeout_millis=10_000).value() == Order("pen")


def test_values_without_a_schema_and_texts_are_printed_as_they_are(run: Run, target: StubTarget) -> None:
    with target.client() as client:
        client.subscribe("texts", "s", initial_position=InitialPosition.Earliest).close()
        client.create_producer("texts", schema=StringSchema()).send("ü {}")
        client.create_producer("texts").send(b"\xff")
    assert run(target, "produce", "texts", "--typed", input='"x"\n').exit_code == 0
    printed = run(target, "consume", "texts", "-s", "s", "--no-follow").stdout_bytes
    assert printed == b"\xc3\xbc {}\n\xff\nx\n"


def test_what_does_not_fit_its_schema_is_printed_as_it_is_stored(run: Run, target: StubTarget) -> None:
    with target.client() as client:
        client.subscribe("orders", "s", initial_position=InitialPosition.Earliest).close()
        liar = client.create_producer("orders", schema=AvroSchema(Order))
        liar._schema = StringSchema()
        liar.send("zork")
    peeked = run(target, "topics", "peek-messages", "orders", "-s", "s")
    assert peeked.exit_code == 0, peeked.stderr
    shown = json.loads(peeked.stdout)
    assert shown["value"] == "zork"
    assert "version 0 cannot be read" in shown["schema_error"]
    assert run(target, "consume", "orders", "-s", "s", "--no-follow").stdout == "zork\n"
