"""Publishing by one request: Pulsar's REST produce."""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from aiohttp import web

from pulsar_ray.asyncio.client import Client
from pulsar_ray.asyncio.producer import Producer
from pulsar_ray.client.producer.message_fields import message_fields
from pulsar_ray.errors import AlreadyClosed, PulsarException, TopicNotFound
from pulsar_ray.gateway.calls import TOPIC, Calls, due_ms, topic_of
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import Refusal, body_of, found, number_of, text_of
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authorization import Right

KEPT_PRODUCERS = 64
"""Producers that are kept open for the next request; those unused for longest go."""
IDLE_S = 5.0
"""How long one is kept that nobody uses.

It shows in stats, and nobody deletes a topic that is in use.
"""
MESSAGES_OF_A_REQUEST = 10_000
_NO_VERSION = -1
"""The `schemaVersion` that Pulsar's own bodies have where they name none."""
_DIGITS = re.compile("[0-9]{1,19}")
"""An event time as text, which is its type in Pulsar's bodies."""


class Lent(NamedTuple):
    """A producer's topic, and its name; "" is one that the broker makes up."""

    topic: str
    name: str = ""


class SharedProducers:
    """Lends producers, each to all requests that publish to its topic under its name.

    One that is in use is not closed; more than `KEPT_PRODUCERS` are open only while all are in use. One that
    nobody has used for `IDLE_S` is closed.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: OrderedDict[Lent, asyncio.Task[Producer]] = OrderedDict()
        self._users: dict[Lent, int] = {}
        self._used_s: dict[Lent, float] = {}
        """When those that are open were lent last."""
        self._next_look: asyncio.TimerHandle | None = None
        self._closing: dict[asyncio.Task[None], Lent] = {}

    def has(self, lent: Lent) -> bool:
        """Return whether this producer is open or is being opened."""
        return lent in self._open

    @asynccontextmanager
    async def of(self, lent: Lent) -> AsyncIterator[Producer]:
        """Lend a producer. Raises what opening it raises."""
        self._users[lent] = self._users.get(lent, 0) + 1
        try:
            yield await self._opened(lent)
        finally:
            self._users[lent] -= 1
            if not self._users[lent]:
                del self._users[lent]
            self._look_later()
            surplus = max(len(self._open) - KEPT_PRODUCERS, 0)
            await _ended([self._end(one) for one in self._unused()[:surplus]])

    async def release(self, topic: str) -> None:
        """Close those of a topic and its partitions that nobody uses just now.

        Else they would keep it from being deleted.
        """
        whole = TopicName.parse(topic).partitioned_full
        for one in self._unused():
            if TopicName.parse(one.topic).partitioned_full == whole:
                self._end(one)
        await _ended(list(self._closing))

    def _unused(self) -> list[Lent]:
        return [one for one in self._open if one not in self._users]

    def _look_later(self) -> None:
        if self._next_look is None and self._open:
            self._next_look = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._next_look = None
        until_s = asyncio.get_running_loop().time() - IDLE_S
        for one in self._unused():
            if self._used_s[one] <= until_s:
                self._end(one)
        self._look_later()

    async def _opened(self, lent: Lent) -> Producer:
        task = self._open.get(lent)
        if task is None or _has_failed(task):
            task = self._open[lent] = asyncio.ensure_future(self._opening(lent))
        self._open.move_to_end(lent)
        self._used_s[lent] = asyncio.get_running_loop().time()
        try:
            # The first request may be given up: others wait for the same producer.
            return await asyncio.shield(task)
        except Exception:
            if self._open.get(lent) is task:
                self._end(lent)
            raise

    async def _opening(self, lent: Lent) -> Producer:
        # A name belongs to one producer at a time.
        await _ended([ending for ending, one in self._closing.items() if one == lent])
        return await self._client.create_producer(
            lent.topic,
            producer_name=lent.name or None,
            batching_max_publish_delay_ms=1,
            # A request may have more messages than any queue, and others publish beside it.
            block_if_queue_full=True,
        )

    def forget(self, lent: Lent, producer: Producer) -> None:
        """Open another one for the next request: this one is of no use any more."""
        task = self._open.get(lent)
        if task is not None and task.done() and not _has_failed(task) and task.result() is producer:
            self._end(lent)

    def _end(self, lent: Lent) -> asyncio.Task[None]:
        """Begin to close a producer, which is lent no more."""
        del self._used_s[lent]
        ending = asyncio.get_running_loop().create_task(_close(self._open.pop(lent)))
        self._closing[ending] = lent
        ending.add_done_callback(self._closing.pop)
        return ending


def _has_failed(task: asyncio.Task[Producer]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _ended(endings: Sequence[asyncio.Task[None]]) -> None:
    """Wait for what ends, which goes on if whoever waits is cancelled."""
    if endings:
        await asyncio.wait(endings)


async def _close(task: asyncio.Task[Producer]) -> None:
    await asyncio.wait((task,))
    if not _has_failed(task):
        with suppress(PulsarException):
            await task.result().close()


class ProduceRoutes:
    """Routes that publish."""

    def __init__(self, calls: Calls, producers: SharedProducers) -> None:
        self._call = calls
        self._topics = calls.admin.topics
        self._producers = producers

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("POST", f"/topics/{TOPIC}", Right.PRODUCE, self.publish)
        routes.add("POST", f"/topics/{TOPIC}/partitions/{{partition}}", Right.PRODUCE, self.publish)

    async def publish(self, request: web.Request) -> web.Response:
        """Publish the messages of a body, and answer with their ids once they are durable."""
        body = await body_of(request, dict)
        messages = body.get("messages", [])
        if not isinstance(messages, list) or len(messages) > MESSAGES_OF_A_REQUEST:
            raise Refusal(400, f"messages is no list of at most {MESSAGES_OF_A_REQUEST:,} messages")
        for name in ("valueSchema", "keySchema", "schemaVersion"):
            if body.get(name) not in (None, "", _NO_VERSION):
                raise Refusal(501, f"{name}: publish the bytes of values, or by a client with a schema")
        name = body.get("producerName") or ""
        if not isinstance(name, str):
            raise Refusal(400, f"producerName={str(name)[:100]}: send a text")
        arguments = [_arguments(message) for message in messages]
        if not name:
            for each in arguments:
                # Callers share the producer: its deduplication would take theirs for the same messages.
                each.pop("sequence_id", None)
        topic = topic_of(request)
        if "partition" in request.match_info:
            topic = f"{topic}-partition-{number_of('partition', request.match_info['partition'])}"
        lent = Lent(topic, name)
        if not self._producers.has(lent):
            await self._check_there(topic)
        if not arguments:
            return found({"messagePublishResults": [], "schemaVersion": 0})
        async with self._producers.of(lent) as producer:
            results = await asyncio.gather(*(_publish(producer, each, topic) for each in arguments))
            if any(isinstance(error, (AlreadyClosed, TopicNotFound)) for _, error in results):
                self._producers.forget(lent, producer)
        return found({"messagePublishResults": [result for result, _ in results], "schemaVersion": 0})

    async def _check_there(self, topic: str) -> None:
        """Refuse a topic that does not exist: a request creates none."""
        name = TopicName.parse(topic)
        count = await self._call(self._topics.get_partitions, name.partitioned_full)
        if name.is_partition and name.partition_index >= count:
            raise Refusal(404, f"Topic {topic} not found")


async def _publish(
    producer: Producer, arguments: dict[str, Any], topic: str
) -> tuple[dict[str, Any], PulsarException | None]:
    try:
        message_id = await producer.send(**arguments)
    except PulsarException as error:
        result = {
            "errorMsg": text_of(error),
            "messageId": str(TopicName.parse(topic).partition_index),
            "errorCode": 2,
        }
        return {**result, "schemaVersion": 0}, error
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    return {"messageId": text, "errorCode": 0, "schemaVersion": 0}, None


def _arguments(message: Any) -> dict[str, Any]:
    """Return the arguments of `send` for a message of a body. Raises Refusal."""
    if not isinstance(message, dict) or not isinstance(message.get("payload"), str):
        raise Refusal(400, f"{str(message)[:200]} is no message: send at least a payload, as a text")
    arguments: dict[str, Any] = {"content": message["payload"].encode()}
    properties = message.get("properties")
    if properties:
        if not isinstance(properties, dict):
            raise Refusal(400, f"properties={str(properties)[:100]}: send an object of texts")
        arguments["properties"] = {name: _property(name, value) for name, value in properties.items()}
    for theirs, ours, kind in (
        ("key", "partition_key", str),
        ("orderingKey", "ordering_key", str),
        ("eventTime", "event_timestamp", int),
        ("sequenceId", "sequence_id", int),
        ("deliverAt", "deliver_at", int),
    ):
        value = message.get(theirs)
        if theirs == "eventTime" and isinstance(value, str) and _DIGITS.fullmatch(value):
            value = int(value)
        if value in (None, "", 0) and not (ours == "sequence_id" and value == 0):
            continue
        if type(value) is not kind:
            raise Refusal(400, f"{theirs}={str(value)[:100]}: send a {'text' if kind is str else 'number'}")
        arguments[ours] = value
    if message.get("deliverAfterMs"):
        arguments["deliver_at"] = due_ms(message["deliverAfterMs"])
    # A wrong one is found before any message is stored.
    message_fields(
        arguments.get("properties"),
        arguments.get("partition_key"),
        arguments.get("ordering_key"),
        arguments.get("sequence_id"),
        None,
        None,
        arguments.get("event_timestamp"),
        arguments.get("deliver_at"),
        None,
    )
    return arguments


def _property(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, (bool, int, float)):
        raise Refusal(400, f"properties: {name[:100]!r} is {json.dumps(value)[:100]}: send a text")
    return json.dumps(value)
