"""A message as a line of JSON."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from pulsar_ray.broker.serving.logs.log_lines import json_line

if TYPE_CHECKING:
    from pulsar_ray.client.received.message import Message


def message_json(message: Message) -> bytes:
    """All fields of a message, and a newline."""
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
    return json_line(fields).encode() + b"\n"


def _value(message: Message) -> dict[str, Any]:
    """The value as text, or in base64 if it is none; null for a tombstone."""
    if message.has_null_value():
        return {"value": None}
    try:
        return {"value": message.data().decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(message.data()).decode()}
