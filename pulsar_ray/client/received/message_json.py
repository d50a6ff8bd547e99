"""Writes a message as JSON, or its value as text."""

from __future__ import annotations

import base64
import datetime
import math
from typing import TYPE_CHECKING, Any

from pulsar_ray.broker.serving.logs.log_lines import json_line
from pulsar_ray.errors import OperationNotSupported, SchemaSerializationException
from pulsar_ray.model.topic_schema import version_number

if TYPE_CHECKING:
    from pulsar_ray.client.received.message import Message


UNREAD = (SchemaSerializationException, OperationNotSupported)
"""A value is shown as it is stored where reading it raises one of these."""


def message_json(message: Message) -> bytes:
    """All fields of a message, and a newline."""
    return json_line(message_fields(message)).encode() + b"\n"


def message_fields(message: Message) -> dict[str, Any]:
    """Return all fields of a message, as JSON has them."""
    fields: dict[str, Any] = {
        "topic": message.topic_name(),
        "message_id": str(message.message_id()),
        "key": message.partition_key() or None,
        "ordering_key": message.ordering_key() or None,
        "properties": message.properties(),
        "publish_time": message.publish_timestamp(),
        "event_time": message.event_timestamp() or None,
        "redelivery_count": message.redelivery_count(),
        "producer_name": message.producer_name(),
        **_value(message),
    }
    if (version := version_number(message.block.schema_version)) is not None:
        fields["schema_version"] = version
    return fields


def value_line(message: Message) -> bytes:
    """The value alone, without a newline; with a schema as JSON, unless it is text."""
    if not message.block.schema_version or message.has_null_value():
        return message.data()
    try:
        value = message.value()
    except UNREAD:
        return message.data()
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json_line(_plain(value))).encode()


def _value(message: Message) -> dict[str, Any]:
    """The value as text, or in base64 if it is none; null for a tombstone."""
    if message.has_null_value():
        return {"value": None}
    if message.block.schema_version:
        try:
            value = message.value()
        except UNREAD as error:
            return {**_payload(message), "schema_error": error.text}
        if not isinstance(value, bytes):
            return {"value": _plain(value)}
    return _payload(message)


def _payload(message: Message) -> dict[str, Any]:
    try:
        return {"value": message.data().decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(message.data()).decode()}


def _plain(value: Any) -> Any:
    """A value that JSON has: of others, as times, the text."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    is_json = value is None or isinstance(value, (bool, int, str))
    return value if is_json or (isinstance(value, float) and math.isfinite(value)) else str(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
