"""Protobuf messages, described by their own descriptors."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.options.checks import is_class
from pulsar_ray.client.options.schema import Schema
from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema

__all__ = ["HAS_PROTOBUF", "ProtobufNativeSchema", "Schema"]

HAS_PROTOBUF = importlib.util.find_spec("google") is not None and (
    importlib.util.find_spec("google.protobuf") is not None
)


class ProtobufNativeSchema(Schema):
    """Messages of one generated Protobuf class."""

    def __init__(self, record_cls: Any) -> None:
        if not HAS_PROTOBUF:
            raise OperationNotSupported("ProtobufNativeSchema needs protobuf: pip install protobuf")
        from google.protobuf.message import Message  # noqa: PLC0415 - only those who use Protobuf need it

        if not (is_class(record_cls) and issubclass(record_cls, Message)):
            raise TypeError(f"record_cls must be a protobuf Message subclass, got {record_cls!r}")
        descriptor: Any = record_cls.DESCRIPTOR  # a generated class has it
        text = json.dumps(_description(descriptor), indent=1)
        super().__init__(record_cls, SchemaType.PROTOBUF_NATIVE, text, "PROTOBUF_NATIVE")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        encoded: bytes = obj.SerializeToString()
        return encoded

    def decode(self, data: bytes) -> Any:
        return self._record_cls.FromString(data)

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        if writer is not None:
            self._check_type_of(writer)
        return self.decode

    def __str__(self) -> str:
        return f"ProtobufNativeSchema({self._record_cls.__name__})"


def _description(descriptor: Any) -> dict[str, str]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415

    files = FileDescriptorSet()
    _add_file(descriptor.file, files, set())
    return {
        "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
        "rootMessageTypeName": descriptor.full_name,
        "rootFileDescriptorName": descriptor.file.name,
    }


def _add_file(file: Any, files: Any, seen: set[str]) -> None:
    """Add a file behind those it depends on."""
    if file.name in seen:
        return
    seen.add(file.name)
    for dependency in file.dependencies:
        _add_file(dependency, files, seen)
    file.CopyToProto(files.file.add())
