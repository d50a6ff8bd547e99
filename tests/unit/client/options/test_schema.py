from __future__ import annotations

import pytest

from pulsar_ray import schema


def test_bytes_are_left_alone_and_nothing_else_is_taken() -> None:
    plain = schema.BytesSchema()
    assert plain.decode(plain.encode(b"a\x00")) == b"a\x00"
    for wrong in (1, "a", bytearray(b"a"), None):
        with pytest.raises(
            TypeError, match=r"Invalid record obj of type .* expected type is <class 'bytes'>"
        ):
            plain.encode(wrong)


def test_strings_are_utf8() -> None:
    text = schema.StringSchema()
    assert text.encode("é") == b"\xc3\xa9"
    assert text.decode(b"\xc3\xa9") == "é"
    with pytest.raises(TypeError) as raised:
        text.encode(b"a")
    assert str(raised.value) == (
        "Invalid record obj of type <class 'bytes'> - expected type is <class 'str'>"
    )


def test_schema_info() -> None:
    info = schema.StringSchema().schema_info()
    assert (info.schema_type(), info.name(), info.schema()) == (schema.SchemaType.STRING, "STRING", "null")
    assert schema.BytesSchema().schema_info().schema_type() == -1
    assert str(schema.StringSchema()) == "StringSchema"
