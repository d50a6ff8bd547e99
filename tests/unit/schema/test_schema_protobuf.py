from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_ray.schema import ProtobufNativeSchema

GOLDEN = "CjUKCmRlbW8ucHJvdG8SAmRtIhsKA01zZxIJCgF4GAEgASgFEgkKAXMYAiABKAliBnByb3RvMw=="


@pytest.fixture(scope="module")
def message_class() -> Any:
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
    factory = pytest.importorskip("google.protobuf.message_factory")
    file = pb2.FileDescriptorProto(name="demo.proto", package="dm", syntax="proto3")
    message = file.message_type.add(name="Msg")
    message.field.add(name="x", number=1, type=5, label=1)
    message.field.add(name="s", number=2, type=9, label=1)
    pool.Add(file)
    return factory.GetMessageClass(pool.FindMessageTypeByName("dm.Msg"))


def test_its_text_and_bytes(message_class: Any) -> None:
    schema = ProtobufNativeSchema(message_class)
    text = schema.schema_info().schema()
    assert json.loads(text) == {
        "fileDescriptorSet": GOLDEN,
        "rootMessageTypeName": "dm.Msg",
        "rootFileDescriptorName": "demo.proto",
    }
    assert text == json.dumps(json.loads(text), indent=1)
    message = message_class(x=1, s="é")
    assert schema.encode(message).hex() == "08011202c3a9"
    assert schema.decode(schema.encode(message)) == message
    assert schema.decode(b"") == message_class()
    assert str(schema) == "ProtobufNativeSchema(Msg)"


def test_other_classes_and_objects(message_class: Any) -> None:
    with pytest.raises(TypeError, match="record_cls must be a protobuf Message subclass, got <class 'int'>"):
        ProtobufNativeSchema(int)
    with pytest.raises(TypeError, match="Invalid record obj of type <class 'int'> - expected type is"):
        ProtobufNativeSchema(message_class).encode(5)
