from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_ray import schema
from pulsar_ray.errors import OperationNotSupported


def test_bytes_are_left_alone_and_nothing_else_is_taken() -> None:
    plain = schema.BytesSchema()
    assert plain.decode(plain.encode(b"a\x00")) == b"a\x00"
    for wrong in (1, "a", bytearray(b"a"), None):
        with pytest.raises(TypeError, match="BytesSchema takes bytes"):
            plain.encode(wrong)


def test_strings_are_utf8() -> None:
    text = schema.StringSchema()
    assert text.encode("é") == b"\xc3\xa9"
    assert text.decode(b"\xc3\xa9") == "é"
    with pytest.raises(TypeError, match="StringSchema takes str"):
        text.encode(b"a")


def test_schema_info() -> None:
    info = schema.StringSchema().schema_info()
    assert (info.schema_type(), info.name(), info.schema()) == (schema.SchemaType.STRING, "STRING", "")
    assert schema.BytesSchema().schema_info().schema_type() == -1


@pytest.mark.parametrize(
    "build",
    [
        lambda: schema.JsonSchema(object),
        lambda: schema.AvroSchema(None, {}),
        lambda: schema.ProtobufNativeSchema(object),
        lambda: schema.Record(a=1),
        schema.Field,
        schema.String,
        lambda: schema.Array(None),
    ],
)
def test_the_others_exist_and_say_what_to_do(build: Callable[[], object]) -> None:
    with pytest.raises(OperationNotSupported, match="BytesSchema or StringSchema"):
        build()


def test_a_record_class_is_refused_where_it_is_declared() -> None:
    with pytest.raises(OperationNotSupported, match="String is not supported yet"):
        type("Example", (schema.Record,), {"name": schema.String()})


def test_every_official_name_is_there() -> None:
    official = (
        "Record Field Null Boolean Integer Long Float Double Bytes String Array Map CustomEnum Schema "
        "BytesSchema StringSchema JsonSchema AvroSchema ProtobufNativeSchema"
    )
    assert set(official.split()) <= set(schema.__all__)
