"""Shows stored messages, by place or time, whatever subscriptions have read."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from pulsar_ray.asyncio.client import Client
from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.message_json import message_fields
from pulsar_ray.errors import OperationNotSupported, PulsarException, Timeout
from pulsar_ray.gateway.calls import Calls, partitions_of, topic_of, utc_ms
from pulsar_ray.gateway.replies import Refusal, number_of, text_of
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.schema.auto import AutoSchema

MOST = 100
MOST_BYTES = 32 << 20
"""So much is read for one page, and one message more at most."""
READ_MS = 2_000
SHOWN_BYTES = 16 << 10
SHOWN_CHARACTERS = 2 << 10
"""So much is shown of a key, or of a property's name or value."""
HEX_BYTES = 256


class MessagePages:
    """Reads through a reader that leaves nothing behind."""

    def __init__(self, calls: Calls, client: Client, show: Callable[..., web.Response]) -> None:
        self._call = calls
        self._client = client
        self._show = show

    async def show(self, request: web.Request) -> web.Response:
        """Show messages from a place or a time on, or the last ones."""
        topic = topic_of(request)
        names = await partitions_of(self._call, topic)
        at, time_text, id_text = (request.query.get(name, "").strip() for name in ("at", "time", "id"))
        at = at or "latest"
        count = min(max(number_of("count", request.query.get("count", "20")), 1), MOST)
        partition = number_of("partition", request.query.get("partition", "0"))
        if partition >= max(len(names), 1):
            raise Refusal(404, f"{topic} has no partition {partition}: it has {len(names)}")
        name = names[partition] if names else topic
        found: list[dict[str, Any]] = []
        problem = ""
        try:
            if not TopicName.parse(name).is_persistent:
                raise OperationNotSupported("a non-persistent topic stores no messages")
            found = await self._read(name, at, time_text, id_text, count)
        except (PulsarException, Refusal, ValueError) as error:
            problem = text_of(error)
        return self._show(
            "messages.html",
            topic=topic,
            partitions=len(names),
            partition=partition,
            messages=found,
            problem=problem,
            count=count,
            at=at,
            time=time_text,
            id=id_text,
        )

    async def _read(
        self, name: str, at: str, time_text: str, id_text: str, count: int
    ) -> list[dict[str, Any]]:
        start, time_ms = MessageId.earliest, 0
        last: MessageId | None = None
        if at == "time":
            time_ms = milliseconds(time_text)
        elif at == "id":
            start = _id_of(id_text, TopicName.parse(name).partition_index)
        elif at == "latest":
            last = await self._call(self._call.admin.topics.get_last_message_id, name)
            if last.entry_id() < 0:
                return []
            blocks = -(-count // max(last.batch_size(), 1))
            start = MessageId(last.partition(), last.ledger_id(), max(last.entry_id() - blocks, 0))
        elif at != "earliest":
            raise Refusal(400, f"at={at[:100]}: give earliest, latest, time or id")
        reader = await self._client.create_reader(
            name,
            start,
            schema=AutoSchema(),
            receiver_queue_size=count,
            start_message_id_inclusive=True,
        )
        kept: deque[Message] = deque()
        size_bytes = 0
        try:
            if time_ms:
                await reader.seek(time_ms)
            while (last is not None or len(kept) < count) and await reader.has_message_available():
                try:
                    message = await reader.read_next(READ_MS)
                except Timeout:
                    break
                kept.append(message)
                size_bytes += _size_bytes(message)
                if last is None and size_bytes >= MOST_BYTES:
                    break
                while len(kept) > count or (size_bytes > MOST_BYTES and len(kept) > 1):
                    size_bytes -= _size_bytes(kept.popleft())
                # Others may publish without an end meanwhile.
                if last is not None and message.message_id() >= last:
                    break
        finally:
            await reader.close()
        # A value may need a version of the schema that has to be asked for.
        return await asyncio.to_thread(lambda: [_described(message) for message in kept])


def _described(message: Message) -> dict[str, Any]:
    data = message.data()
    fields = message_fields(message) if len(data) <= SHOWN_BYTES else None
    value: Any = None
    if fields is None:
        value = data[:SHOWN_BYTES].decode(errors="replace")
    else:
        value = fields.get("value", fields.get("value_base64"))
    properties = _shown(message.properties())
    return {
        "id": str(message.message_id()),
        "place": f"{message.message_id().ledger_id()}:{message.message_id().entry_id()}",
        "key": _cut(message.partition_key()),
        "properties": properties,
        "properties_left_out": len(message.properties()) - len(properties),
        "publish_time": message.publish_timestamp(),
        "event_time": message.event_timestamp(),
        "producer": message.producer_name(),
        "bytes": len(data),
        "is_cut": fields is None,
        "is_tombstone": message.has_null_value(),
        "value": value,
        "version": None if fields is None else fields.get("schema_version"),
        "error": "" if fields is None else fields.get("schema_error", ""),
        "hex": _hex(data[:HEX_BYTES]),
    }


def _size_bytes(message: Message) -> int:
    """Return about how many bytes a message takes while its page is made."""
    texts = (text for pair in message.properties().items() for text in pair)
    return len(message.data()) + len(message.partition_key()) + sum(map(len, texts))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _shown(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return as many properties as there is room for, long ones cut."""
    shown: list[tuple[str, str]] = []
    left = SHOWN_BYTES
    for name, value in properties.items():
        left -= min(len(name), SHOWN_CHARACTERS) + min(len(value), SHOWN_CHARACTERS)
        if left < 0:
            break
        shown.append((_cut(name), _cut(value)))
    return shown


def _hex(data: bytes) -> str:
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:06x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def milliseconds(text: str) -> int:
    """Return a time that a form gives: UTC, unless it says otherwise."""
    try:
        return utc_ms(text)
    except ValueError:
        raise Refusal(400, f"{text[:100]!r} is no time: give it as 2026-01-31T12:00:00") from None


def _id_of(text: str, partition: int) -> MessageId:
    ledger, _, entry = text.partition(":")
    return MessageId(partition, number_of("ledger", ledger), number_of("entry", entry))
