"""Publishing by one request: Pulsar's REST produce."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from pulsar_ray.asyncio.client import Client
from pulsar_ray.asyncio.producer import Producer
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


class SharedProducers:
    """Producers of topics, each shared by the requests that publish to it.

    One that is in use is not closed; more than `KEPT_PRODUCERS` are open only while all are in use. One that
    nobody has used for `IDLE_S` is closed.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._open: OrderedDict[str, asyncio.Task[Producer]] = OrderedDict()
        self._users: dict[str, int] = {}
        self._used_s: dict[str, float] = {}
        """When those that are open were lent last."""
        self._next_look: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def has(self, topic: str) -> bool:
        """Return whether a producer of the topic is open or is being opened."""
        return topic in self._open

    @asynccontextmanager
    async def of(self, topic: str) -> AsyncIterator[Producer]:
        """Lend the producer of a topic. Raises what opening it raises."""
        self._users[topic] = self._users.get(topic, 0) + 1
        try:
            yield await self._opened(topic)
        finally:
            self._users[topic] -= 1
            if not self._users[topic]:
                del self._users[topic]
            await self._close_unused()
            self._look_later()

    async def release(self, topic: str) -> None:
        """Close those of a topic and its partitions that nobody uses just now.

        Else they would keep it from being deleted.
        """
        whole = TopicName.parse(topic).partitioned_full
        for one in [one for one in self._open if one not in self._users]:
            if TopicName.parse(one).partitioned_full == whole:
                await self._close(one)

    def _look_later(self) -> None:
        if self._next_look is None and self._open:
            self._next_look = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._next_look = None
        loop = asyncio.get_running_loop()
        until_s = loop.time() - IDLE_S
        for topic in [one for one in self._open if one not in self._users]:
            if self._used_s.get(topic, 0.0) <= until_s:
                closing = loop.create_task(self._close(topic))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        self._look_later()

    async def _opened(self, topic: str) -> Producer:
        task = self._open.get(topic)
        if task is None:
            task = asyncio.ensure_future(self._client.create_producer(topic, batching_max_publish_delay_ms=1))
            self._open[topic] = task
        self._open.move_to_end(topic)
        self._used_s[topic] = asyncio.get_running_loop().time()
        try:
            # The first request may be given up: others wait for the same producer.
            return await asyncio.shield(task)
        except Exception:
            if self._open.get(topic) is task:
                self._forgotten(topic)
            raise

    async def forget(self, topic: str, producer: Producer) -> None:
        """Open another one for the next request: this one is of no use any more."""
        task = self._open.get(topic)
        if task is not None and task.done() and not task.exception() and task.result() is producer:
            self._forgotten(topic)
            await _close(producer)

    def _forgotten(self, topic: str) -> asyncio.Task[Producer] | None:
        self._used_s.pop(topic, None)
        return self._open.pop(topic, None)

    async def _close_unused(self) -> None:
        for topic in [one for one in self._open if one not in self._users]:
            if len(self._open) <= KEPT_PRODUCERS:
                return
            await self._close(topic)

    async def _close(self, topic: str) -> None:
        task = self._forgotten(topic)
        if task is not None and task.done() and not task.exception():
            await _close(task.result())


async def _close(producer: Producer) -> None:
    try:
        await producer.close()
    except PulsarException:
        return


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
        for name in ("valueSchema", "keySchema"):
            if body.get(name):
                raise Refusal(501, f"{name}: publish the bytes of values, or by a client with a schema")
        arguments = [_arguments(message) for message in messages]
        topic = topic_of(request)
        if "partition" in request.match_info:
            topic = f"{topic}-partition-{number_of('partition', request.match_info['partition'])}"
        if not self._producers.has(topic):
            await self._check_there(topic)
        if not arguments:
            return found({"messagePublishResults": [], "schemaVersion": 0})
        async with self._producers.of(topic) as producer:
            results = await asyncio.gather(*(_publish(producer, each, topic) for each in arguments))
            if any(isinstance(error, (AlreadyClosed, TopicNotFound)) for _, error in results):
                await self._producers.forget(topic, producer)
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
        arguments["properties"] = {str(name): str(value) for name, value in properties.items()}
    for theirs, ours, kind in (
        ("key", "partition_key", str),
        ("orderingKey", "ordering_key", str),
        ("eventTime", "event_timestamp", int),
        ("sequenceId", "sequence_id", int),
        ("deliverAt", "deliver_at", int),
    ):
        value = message.get(theirs)
        if value in (None, "", 0) and not (ours == "sequence_id" and value == 0):
            continue
        if type(value) is not kind:
            raise Refusal(400, f"{theirs}={str(value)[:100]}: send a {'text' if kind is str else 'number'}")
        arguments[ours] = value
    if message.get("deliverAfterMs"):
        arguments["deliver_at"] = due_ms(message["deliverAfterMs"])
    return arguments
