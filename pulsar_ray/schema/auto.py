"""Values of any topic as plain ones, by the schema that they were written with."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from pulsar_ray.client.options.schema import Schema
from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray.schema.arrow_schema import row_values, rows_reading
from pulsar_ray.schema.key_value import SeparatedReading, decode_pair
from pulsar_ray.schema.nested_avro import reader_of
from pulsar_ray.schema.schema_avro import HAS_AVRO, parsed_writer
from pulsar_ray.schema.schema_protobuf import HAS_PROTOBUF

_NUMBERS = {"INT8": ">b", "INT16": ">h", "INT32": ">i", "INT64": ">q", "FLOAT": ">f", "DOUBLE": ">d"}


class AutoSchema(Schema):
    """For consumers that have no class: records are dicts, pairs are `KeyValue`.

    Each value is read by the version that it was written with; bytes stay bytes. Avro needs fastavro,
    Protobuf needs protobuf.
    """

    takes_keys = True

    def __init__(self) -> None:
        super().__init__(object, SchemaType.AUTO_CONSUME, None, "AUTO_CONSUME")

    def encode(self, obj: Any) -> bytes:
        raise TypeError("AutoSchema is for consumers: a producer needs the schema of its values")

    def decode(self, data: bytes) -> Any:
        return data

    def reading(self, writer: TopicSchema | None) -> Callable[[bytes], Any]:
        make = None if writer is None else _READINGS.get(writer.type)
        return self.decode if writer is None or make is None else make(writer)

    def rows_reading(self, writer: TopicSchema | None) -> Callable[[pa.RecordBatch], list[Any]] | None:
        is_rows = writer is not None and writer.type == SchemaType.ARROW.name
        return row_values if is_rows else None


def _number(writer: TopicSchema) -> Callable[[bytes], Any]:
    number = struct.Struct(_NUMBERS[writer.type])
    return lambda data: number.unpack(data)[0]


def _pair(writer: TopicSchema) -> Callable[[bytes], Any]:
    key, value = (AutoSchema().reading(part) for part in writer.parts())
    if writer.is_separated:
        return SeparatedReading(key, value)
    return lambda data: decode_pair(data, key, value)


def _avro(writer: TopicSchema) -> Callable[[bytes], Any]:
    if not HAS_AVRO:
        raise OperationNotSupported("values in Avro need fastavro: pip install 'pulsar-ray[schema]'")
    written = parsed_writer(writer)
    reader = reader_of(written)

    def decode(data: bytes) -> Any:
        stream = io.BytesIO(data)
        value = reader(stream, written, None)
        if stream.tell() != len(data):
            raise ValueError(f"{len(data) - stream.tell()} bytes follow the value")
        return value

    return decode


def _protobuf(writer: TopicSchema) -> Callable[[bytes], Any]:
    if not HAS_PROTOBUF:
        raise OperationNotSupported("values in Protobuf need it: pip install protobuf")
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

    described = json.loads(writer.text)
    pool: Any = DescriptorPool()
    for file in FileDescriptorSet.FromString(base64.b64decode(described["fileDescriptorSet"])).file:
        pool.Add(file)
    kind: Any = GetMessageClass(pool.FindMessageTypeByName(described["rootMessageTypeName"]))
    return lambda data: MessageToDict(kind.FromString(data), preserving_proto_field_name=True)


_READINGS: dict[str, Callable[[TopicSchema], Callable[[bytes], Any]]] = {
    SchemaType.AVRO.name: _avro,
    SchemaType.JSON.name: lambda _: json.loads,
    SchemaType.ARROW.name: rows_reading,
    SchemaType.STRING.name: lambda _: bytes.decode,
    SchemaType.PROTOBUF_NATIVE.name: _protobuf,
    SchemaType.KEY_VALUE.name: _pair,
    **dict.fromkeys(_NUMBERS, _number),
}
