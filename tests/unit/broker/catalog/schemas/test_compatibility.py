"""The compatibility matrix: which schema may follow on which, and read what."""

from __future__ import annotations

import json
from typing import Any

import avro.schema
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from pulsar_ray.broker.catalog.schemas.avro_types import parse_definition
from pulsar_ray.broker.catalog.schemas.compatibility import check_next_version, check_reader
from pulsar_ray.broker.catalog.schemas.resolution import Effort, misfits
from pulsar_ray.errors import IncompatibleSchema
from pulsar_ray.model.topic_schema import SchemaVersion, TopicSchema

STRATEGIES = (
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
TOPIC = "persistent://public/default/orders"


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Fields are (name, type), or (name, type, default)."""
    described = [
        {"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})}
        for each in fields
    ]
    return {"type": "record", "name": name, "fields": described, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


A = ("a", "int")
CHANGES: dict[str, list[tuple[str, Any, Any]]] = {
    # Both ways; the name after that is what the avro package says otherwise, if anything.
    "A": [
        ("same", record(A), record(A)),
        ("reordered fields", record(A, ("b", "string")), record(("b", "string"), A)),
        ("doc", record(A), record(A, doc="new")),
        ("add required with default", record(A), record(A, ("b", "int", 5))),
        ("add nullable with default", record(A), record(A, ("b", ["null", "int"], None))),
        ("add nullable, default of the second branch", record(A), record(A, ("b", ["null", "int"], 5))),
        ("delete a field with a default", record(A, ("b", "int", 5)), record(A)),
        ("delete a field with a null default", record(A, ("b", ["null", "int"], None)), record(A)),
        ("renamed, both with defaults", record(A, ("b", "int", 1)), record(A, ("c", "int", 1))),
        ("string to bytes", record(("a", "string")), record(("a", "bytes"))),
        ("bytes to string", record(("a", "bytes")), record(("a", "string"))),
        ("enum symbol added", record(("e", enum("x"))), record(("e", enum("x", "y")))),
        ("enum symbol removed", record(("e", enum("x", "y"))), record(("e", enum("x")))),
        ("enum symbols reordered", record(("e", enum("x", "y"))), record(("e", enum("y", "x")))),
        ("default changed", record(("a", "int", 1)), record(("a", "int", 2))),
        ("default removed", record(("a", "int", 1)), record(A)),
        ("record renamed", record(A), record(A, name="S")),
        ("namespace changed", record(A, namespace="x"), record(A, namespace="y")),
        (
            "nested record renamed",
            record(("s", record(A, name="Sub"))),
            record(("s", record(A, name="Other"))),
        ),
    ],
    "B": [
        ("delete required", record(A, ("b", "int")), record(A)),
        ("delete nullable without default", record(A, ("b", ["null", "int"])), record(A)),
        (
            "rename with an alias",
            record(A),
            {**record(), "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]},
        ),
        ("int to long", record(A), record(("a", "long"))),
        ("int to double", record(A), record(("a", "double"))),
        ("float to double", record(("a", "float")), record(("a", "double"))),
        ("required to nullable", record(A), record(("a", ["null", "int"]))),
        (
            "items int to long",
            record(("a", {"type": "array", "items": "int"})),
            record(("a", {"type": "array", "items": "long"})),
        ),
        ("int to a union", record(A), record(("a", ["int", "string"]))),
    ],
    "C": [
        ("add required", record(A), record(A, ("b", "int"))),
        ("add nullable without default", record(A), record(A, ("b", ["null", "int"]))),
        ("long to int", record(("a", "long")), record(A)),
        ("nullable to required", record(("a", ["null", "int"])), record(A)),
        ("a union to int", record(("a", ["int", "string"])), record(A)),
        (
            "nested: add required",
            record(("s", record(A, name="Sub"))),
            record(("s", record(A, ("b", "int"), name="Sub"))),
        ),
    ],
    "D": [
        ("rename required", record(A), record(("b", "int"))),
        ("int to string", record(A), record(("a", "string"))),
    ],
}
LETS_THROUGH = {"enum symbol added", "enum symbol removed", "nested record renamed"}
"""The broker lets through what the avro package would refuse, one way at least."""
EXPECTED = {
    # Producer and consumer, for each of STRATEGIES.
    "A": "++ ++ ++ ++ ++ ++",
    "B": "++ ++ -+ -+ -+ --",
    "C": "-- -- +- +- -- --",
    "D": "-- -- -- -- -- --",
}


def schema(definition: Any, kind: str = "AVRO") -> TopicSchema:
    return TopicSchema(kind, json.dumps(definition))


def versions(*definitions: Any, kind: str = "AVRO") -> list[SchemaVersion]:
    return [
        SchemaVersion(number, schema(each, kind), f"producer {number}", 1_700_000_000_000)
        for number, each in enumerate(definitions)
    ]


def producer(strategy: str, new: TopicSchema, known: list[SchemaVersion]) -> str:
    return _sign(check_next_version, strategy, new, known)


def consumer(strategy: str, new: TopicSchema, known: list[SchemaVersion]) -> str:
    return _sign(check_reader, strategy, new, known)


def _sign(check: Any, strategy: str, new: TopicSchema, known: list[SchemaVersion]) -> str:
    try:
        check(strategy, new, known, TOPIC)
    except IncompatibleSchema:
        return "-"
    return "+"


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_the_matrix_of_single_changes(kind: str) -> None:
    found: dict[str, str] = {}
    expected: dict[str, str] = {}
    for group, changes in CHANGES.items():
        for name, old, new in changes:
            known, given = versions(old, kind=kind), schema(new, kind)
            found[name] = " ".join(
                producer(each, given, known) + consumer(each, given, known) for each in STRATEGIES
            )
            expected[name] = EXPECTED[group]
            assert (
                producer("ALWAYS_COMPATIBLE", given, known) + consumer("ALWAYS_COMPATIBLE", given, known)
                == "++"
            )
            assert consumer("ALWAYS_INCOMPATIBLE", given, known) == "-"
    assert found == expected


def chain(strategy: str, *definitions: Any) -> tuple[str, str]:
    """Register one after the other, then look which of them consumers may read with."""
    known: list[SchemaVersion] = []
    signs = ""
    for each in definitions:
        is_known = any(schema(each) == version.schema for version in known)
        sign = "+" if is_known else producer(strategy, schema(each), known)
        signs += sign
        if sign == "+" and not is_known:
            known.append(SchemaVersion(len(known), schema(each), "", 0))
    return signs, "".join(consumer(strategy, schema(each), known) for each in definitions)


def test_the_matrix_of_chains() -> None:
    loses = (record(A), record(A, ("b", "int", 1)), record(A, ("b", "int")))
    returns = (record(A, ("b", "string", "")), record(A), record(A, ("b", "int", 1)))
    required = (record(A), record(A, ("b", "int")), record(A))
    for strategy in ("BACKWARD", "FORWARD", "FULL"):
        assert chain(strategy, *loses) == ("+++", "+++")
        assert chain(strategy, *returns) == ("+++", "-++")
    assert chain("BACKWARD_TRANSITIVE", *loses) == ("++-", "++-")
    assert chain("FORWARD_TRANSITIVE", *loses) == ("+++", "+++")
    assert chain("FULL_TRANSITIVE", *loses) == ("++-", "++-")
    assert chain("BACKWARD_TRANSITIVE", *returns) == ("++-", "++-")
    assert chain("FORWARD_TRANSITIVE", *returns) == ("++-", "+++")
    assert chain("FULL_TRANSITIVE", *returns) == ("++-", "++-")
    for strategy in STRATEGIES:
        allows = strategy.startswith("FORWARD")
        assert chain(strategy, *required)[0] == ("+++" if allows else "+-+")


def test_other_types_go_together_only_where_everything_does() -> None:
    known = versions(record(A))
    for strategy in STRATEGIES:
        assert producer(strategy, schema(record(A), "JSON"), known) == "-"
        assert consumer(strategy, TopicSchema("STRING", ""), known) == "-"
    assert producer("ALWAYS_COMPATIBLE", TopicSchema("STRING", ""), known) == "+"


def test_answers_are_those_of_the_avro_package_where_values_can_be_read() -> None:
    for changes in CHANGES.values():
        for name, old, new in changes:
            for writer, reader in ((old, new), (new, old)):
                if name == "add nullable, default of the second branch":
                    continue  # no valid Avro, though official clients write it
                found = misfits(parse_definition(reader), parse_definition(writer), Effort())
                told = avro.schema.make_avsc_object({**reader, "name": "T", "namespace": ""})
                checker: Any = ReaderWriterCompatibilityChecker
                said = checker().get_compatibility(
                    told, avro.schema.make_avsc_object({**writer, "name": "T", "namespace": ""})
                )
                is_readable = said.compatibility is SchemaCompatibilityType.compatible
                if is_readable or name not in LETS_THROUGH:
                    assert is_readable == (not found), (name, found, said.messages)
                else:
                    assert not found, name


def test_a_refusal_says_what_where_against_which_version_and_what_helps() -> None:
    known = versions(record(A), record(A, ("s", record(("x", "int"), name="Sub"))))
    new = record(A, ("s", record(("x", "int"), ("y", "int"), name="Sub")))
    with pytest.raises(IncompatibleSchema) as refused:
        check_next_version("FULL", schema(new), known, TOPIC)
    for part in (
        TOPIC,
        "version 1 (of type AVRO, registered by producer 1 at 2023-11-14 22:13:20 UTC)",
        "the strategy FULL",
        "field 's.y': what was written has no such field, and there is no default",
        "give the field 'y' a default",
    ):
        assert part in str(refused.value)


def test_a_type_that_contains_itself_is_compared() -> None:
    def tree(*more: Any) -> dict[str, Any]:
        return record(("children", {"type": "array", "items": "Tree"}), *more, name="Tree")

    assert producer("FULL", schema(tree(("n", "int", 0))), versions(tree())) == "+"
    assert producer("FULL", schema(tree(("n", "int"))), versions(tree())) == "-"


def test_pairs_are_compared_part_by_part() -> None:
    def pair(key: Any, value: Any) -> TopicSchema:
        texts = {"key": json.dumps(key), "value": json.dumps(value)}
        properties = {"key.schema.type": "AVRO", "value.schema.type": "AVRO"}
        return TopicSchema("KEY_VALUE", json.dumps(texts), properties)

    known = [SchemaVersion(0, pair(record(A), record(A)), "", 0)]
    assert producer("FULL", pair(record(A), record(A, ("b", "int", 1))), known) == "+"
    with pytest.raises(IncompatibleSchema, match=r"value\.b"):
        check_next_version("FULL", pair(record(A), record(A, ("b", "int"))), known, TOPIC)


def test_schemas_of_very_many_pairs_of_types_are_refused_in_words() -> None:
    names = [f"N{number}" for number in range(100)]
    first: list[Any] = [record(("v", "int"), (f"w{name}", "int"), name=name) for name in names]
    union = [("u0", first), *((f"u{number}", names) for number in range(1, 200))]
    other = [("u0", [record(("v", "string"), name=name) for name in names]), *union[1:]]
    assert producer("FULL", schema(record(*union)), versions(record(*other))) == "-"
    reader, writer = parse_definition(record(*union)), parse_definition(record(*union))
    with pytest.raises(ValueError, match="too large to be compared"):
        misfits(reader, writer, Effort(100))
