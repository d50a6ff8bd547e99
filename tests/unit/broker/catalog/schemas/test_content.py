"""What may be a topic's schema, and which schemas have the same content."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_ray.broker.catalog.schemas.content import check_schema, digest
from pulsar_ray.errors import IncompatibleSchema
from pulsar_ray.model.topic_schema import MAX_SCHEMA_BYTES, TopicSchema


def avro(definition: Any, **more: Any) -> TopicSchema:
    return TopicSchema("AVRO", json.dumps(definition, **more))


RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": 1}]}


def changed(**more: Any) -> dict[str, Any]:
    return {**RECORD, **more}


def test_spaces_the_order_of_keys_and_doc_make_no_difference() -> None:
    same = [
        avro(RECORD, indent=1),
        avro(changed(doc="words")),
        avro({key: RECORD[key] for key in reversed(RECORD)}),
        TopicSchema("AVRO", json.dumps(RECORD), {"of": "no content"}),
    ]
    assert {digest(each) for each in same} == {digest(avro(RECORD))}


@pytest.mark.parametrize(
    "other",
    [
        avro(changed(namespace="n")),
        avro(changed(fields=[{"name": "a", "type": "int", "default": 2}])),
        avro(changed(fields=[{"name": "a", "type": "int", "default": {"doc": 1}}])),
        avro(changed(**{"java-class": "x"})),
        TopicSchema("JSON", json.dumps(RECORD)),
    ],
)
def test_all_else_does(other: TopicSchema) -> None:
    assert digest(other) != digest(avro(RECORD))


def test_a_string_is_a_string_whichever_client_says_so() -> None:
    assert digest(TopicSchema("STRING", "null")) == digest(TopicSchema("STRING", ""))


def test_the_types_of_a_pair_are_content() -> None:
    def pair(kind: str) -> TopicSchema:
        return TopicSchema(
            "KEY_VALUE", '{"key": "", "value": ""}', {"key.schema.type": "STRING", "value.schema.type": kind}
        )

    check_schema(pair("STRING"))
    assert digest(pair("STRING")) != digest(pair("BYTES"))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (TopicSchema("BYTES", ""), "no type of schema"),
        (TopicSchema("avro", ""), "no type of schema"),
        (TopicSchema("AVRO", "zork"), "Invalid schema definition data for AVRO schema"),
        (TopicSchema("AVRO", "[" * 100_000), "nested too deep|Invalid"),
        (avro({"type": "object", "properties": {}}), "no type 'object'"),
        (avro(changed(name="1bad")), "no name of a type"),
        (avro(changed(name="a b")), "no name of a type"),
        (avro({"type": "record", "fields": []}), "no name of a type"),
        (avro(changed(fields=[{"name": "a", "type": "enum"}])), "at a"),
        (avro(changed(fields=[{"name": "a", "type": "int"}] * 2)), "'a' is there twice"),
        (avro(changed(fields=[{"name": "a", "type": RECORD}])), "R is defined twice"),
        (avro(changed(fields=[{"name": "a", "type": {"type": "array"}}])), "at a: the array has no 'items'"),
        (avro(changed(fields=[{"name": "a"}])), "needs a name and a type"),
        (avro([["null"]]), "a union has a union in it"),
        (TopicSchema("PROTOBUF_NATIVE", "{}"), "rootMessageTypeName"),
        (TopicSchema("KEY_VALUE", "{}"), "no texts of a key and a value"),
        (TopicSchema("STRING", "x" * (MAX_SCHEMA_BYTES + 1)), "at most 524288 are kept"),
        (TopicSchema("STRING", "\ud800"), "no UTF-8"),
        (TopicSchema("STRING", 5), "a str, not int"),  # type: ignore[arg-type]
        (TopicSchema("STRING", "", {"a": 1}), "a dict of str"),  # type: ignore[dict-item]
    ],
)
def test_others_are_refused_in_words(schema: TopicSchema, reason: str) -> None:
    with pytest.raises(IncompatibleSchema, match=reason):
        check_schema(schema)


@pytest.mark.parametrize(
    "definition",
    [
        "int",
        ["null", "int"],
        {"type": "array", "items": "int"},
        changed(fields=[{"name": "a", "type": ["null", "int"], "default": 5}]),
        changed(fields=[{"name": "a", "type": {"type": "int", "logicalType": "date"}}]),
        changed(namespace="n", fields=[{"name": "a", "type": ["null", "R"]}, {"name": "b", "type": "n.R"}]),
        changed(fields=[{"name": "a", "type": {"type": {"type": "string"}}}]),
    ],
)
def test_what_official_clients_write_is_taken(definition: Any) -> None:
    check_schema(avro(definition))


def test_a_union_of_many_branches_is_taken() -> None:
    check_schema(avro([{"type": "record", "name": f"R{number}", "fields": []} for number in range(100)]))
