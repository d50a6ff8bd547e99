"""Stored messages by their place, id or time, whatever subscriptions have read."""

from __future__ import annotations

import json
from datetime import MAXYEAR, datetime, timedelta, timezone

from aiohttp import web

from pulsar_ray.asyncio.client import Client
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import Timeout
from pulsar_ray.gateway.calls import TOPIC, Calls, described_id, topic_of
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import Refusal, found, number_of
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.schema.auto import AutoSchema
from pulsar_ray.security.authorization import Right

READ_MS = 2_000
_CYCLE_YEARS, _CYCLE_MS = 400, 146_097 * 86_400_000
"""After so many years the calendar repeats itself."""
_A_TOPIC = f"/admin/v2/{TOPIC}"


class StoredMessageRoutes:
    """Routes that read one message, each through a reader that leaves nothing behind."""

    def __init__(self, calls: Calls, client: Client) -> None:
        self._call = calls
        self._client = client

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("GET", f"{_A_TOPIC}/examinemessage", Right.CONSUME, self.examine)
        routes.add("GET", f"{_A_TOPIC}/ledger/{{ledger}}/entry/{{entry}}", Right.CONSUME, self.by_id)
        routes.add("GET", f"{_A_TOPIC}/messageid/{{time}}", Right.CONSUME, self.id_at)

    async def examine(self, request: web.Request) -> web.Response:
        """Return the message of the n-th entry, from the `earliest` or the `latest` on."""
        topic = await self._checked(request)
        end = request.query.get("initialPosition", "latest")
        if end not in ("earliest", "latest"):
            raise Refusal(400, f"initialPosition={end[:100]}: give earliest or latest")
        place = number_of("messagePosition", request.query.get("messagePosition", "1"), 1)
        internal = await self._call(self._call.admin.topics.stats_internal, topic)
        behind = place - 1 if end == "earliest" else internal["numberOfEntries"] - place
        for ledger in internal["ledgers"] if behind >= 0 else ():
            if behind < ledger["entries"]:
                return await self._message_at(topic, ledger["ledgerId"], behind)
            behind -= ledger["entries"]
        raise Refusal(404, "Message not found")

    async def by_id(self, request: web.Request) -> web.Response:
        """Return the message of an id: its payload, and what else it has in headers."""
        ledger, entry = (number_of(name, request.match_info[name]) for name in ("ledger", "entry"))
        return await self._message_at(await self._checked(request), ledger, entry)

    async def id_at(self, request: web.Request) -> web.Response:
        """Return the id of the first message that was published at a time or later.

        Behind the end it is the place of the next one; -1:-1, the earliest, where nothing was ever stored.
        """
        time_ms = number_of("time", request.match_info["time"])
        topic = await self._checked(request)
        message = await self._read(topic, MessageId.earliest, time_ms)
        if message is not None:
            return found(described_id(message.message_id()))
        last = await self._call(self._call.admin.topics.get_last_message_id, topic)
        if last.ledger_id() < 0:
            return found(described_id(last))
        return found(described_id(MessageId(last.partition(), last.ledger_id(), last.entry_id() + 1)))

    async def _checked(self, request: web.Request) -> str:
        """Return the topic, which is there: a reader would create another one."""
        topic = topic_of(request)
        name = TopicName.parse(topic)
        if not name.is_persistent:
            raise Refusal(405, f"{topic} is non-persistent: it stores nothing")
        count = await self._call(self._call.admin.topics.get_partitions, name.partitioned_full)
        if name.is_partition and name.partition_index >= count:
            raise Refusal(404, f"{name.partitioned_full} has {count} partitions, and no {topic}")
        if count and not name.is_partition:
            raise Refusal(405, f"{topic} is a partitioned topic, which has no order: name one partition")
        return topic

    async def _message_at(self, topic: str, ledger: int, entry: int) -> web.Response:
        wanted = MessageId(TopicName.parse(topic).partition_index, ledger, entry)
        message = await self._read(topic, wanted)
        if message is None or (message.message_id().ledger_id(), message.message_id().entry_id()) != (
            ledger,
            entry,
        ):
            raise Refusal(404, "Message id not found")
        return message_answer(message)

    async def _read(self, topic: str, start: MessageId, time_ms: int = 0) -> Message | None:
        reader = await self._client.create_reader(
            topic, start, schema=AutoSchema(), receiver_queue_size=1, start_message_id_inclusive=True
        )
        try:
            if time_ms:
                await reader.seek(time_ms)
            return await reader.read_next(READ_MS) if await reader.has_message_available() else None
        except Timeout:
            return None
        finally:
            await reader.close()


def message_answer(message: Message) -> web.Response:
    """Return a message as Pulsar's REST does: the payload, and all else in headers."""
    message_id = message.message_id()
    headers = {
        "X-Pulsar-Message-ID": f"{message_id.ledger_id()}:{message_id.entry_id()}",
        "X-Pulsar-publish-time": as_time(message.publish_timestamp()),
        "X-Pulsar-producer-name": _in_header(message.producer_name()),
        "X-Pulsar-PROPERTY": json.dumps(message.properties()),
        "X-Pulsar-uncompressed-size": str(len(message.data())),
        "X-Pulsar-is-encrypted": "false",
    }
    if message.event_timestamp():
        headers["X-Pulsar-event-time"] = as_time(message.event_timestamp())
    if message.partition_key():
        headers["X-Pulsar-partition-key"] = _in_header(message.partition_key())
    return web.Response(body=message.data(), headers=headers, content_type="application/octet-stream")


def as_time(time_ms: int) -> str:
    """Return a time in ms since 1970 as Pulsar writes it.

    Programs give event times as they like: years behind 9999, which Python has not, are written with a plus.
    """
    cycles, left_ms = divmod(time_ms, _CYCLE_MS)
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=left_ms)
    year = moment.year + _CYCLE_YEARS * cycles
    text = moment.strftime("%m-%dT%H:%M:%S")
    return f"{'+' if year > MAXYEAR else ''}{year:04}-{text}.{left_ms % 1000:03}Z"


def _in_header(text: str) -> str:
    """Return a text that a header can hold."""
    return text if text.isascii() and text.isprintable() else json.dumps(text)
