"""Pulsar's WebSocket API: producers, consumers and readers whose frames are JSON."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from pulsar_ray.asyncio.client import Client
from pulsar_ray.asyncio.consumer import Consumer
from pulsar_ray.asyncio.producer import Producer
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import AlreadyClosed, PulsarException
from pulsar_ray.gateway.calls import TOPIC, Calls, due_ms, topic_of, utc_ms
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import Refusal, text_of
from pulsar_ray.gateway.stored_messages import as_time
from pulsar_ray.model.enums import (
    BatchingType,
    CompressionType,
    ConsumerType,
    HashingScheme,
    InitialPosition,
    PartitionsRoutingMode,
    SubscriptionMode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authorization import Resource, Right

FRAME_BYTES = 8 << 20
"""The largest frame: a payload of 5 MiB in base64, and its properties."""
SENDS_UNDER_WAY = 1000
RECEIVER_QUEUE = 1000
SOCKETS = 1000
PING_S = 30.0
_NUMBERS = {"errorCode": 0, "schemaVersion": 0}
_SEND_ERROR, _NO_JSON = "send-error:7", "send-error:3"


class WebSocketRoutes:
    """Routes of WebSockets; so many may be open at once."""

    def __init__(
        self, calls: Calls, client: Client, check: Callable[[Right, Resource], Awaitable[None]]
    ) -> None:
        self._call = calls
        self._client = client
        self._check = check
        self._open: set[web.WebSocketResponse] = set()

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("GET", f"/ws/v2/producer/{TOPIC}", Right.PRODUCE, self.produce)
        routes.add("GET", f"/ws/v2/consumer/{TOPIC}/{{subscription}}", Right.CONSUME, self.consume)
        routes.add("GET", f"/ws/v2/reader/{TOPIC}", Right.CONSUME, self.read)

    async def close(self) -> None:
        """End all sockets, and tell their other ends to come again."""
        for socket in list(self._open):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the gateway stops")

    async def produce(self, request: web.Request) -> web.StreamResponse:
        """Publish the frames of a socket."""
        self._admit(request)
        # A caller that waits for answers is not to wait for a batch to fill, unless the query says so.
        arguments = {"batching_max_publish_delay_ms": 1, **_arguments(request.query, _PRODUCER)}
        producer = await self._client.create_producer(topic_of(request), **arguments)
        try:
            return await self._serve(request, _Producing(producer).serve)
        finally:
            with suppress(PulsarException):
                await producer.close()

    async def consume(self, request: web.Request) -> web.StreamResponse:
        """Send the messages of a subscription through a socket, as far as they are acknowledged."""
        self._admit(request)
        given = _arguments(request.query, _CONSUMER)
        pulls = given.pop("pulls", False)
        failures, letters = given.pop("max_failures", None), given.pop("dead_letter_topic", None)
        if failures is not None or letters is not None:
            given["dead_letter_policy"] = _dead_letter_policy(failures, letters)
            # They are published by this process, which may do everything.
            topic = letters or f"{topic_of(request)}-{request.match_info['subscription']}-DLQ"
            await self._check(Right.PRODUCE, Resource(TopicName.parse(topic).full))
        window = given.setdefault("receiver_queue_size", RECEIVER_QUEUE)
        name = request.match_info["subscription"]
        consumer = await self._client.subscribe(topic_of(request), name, **given)
        try:
            consuming = _Consuming(consumer, 0 if pulls else window, pulls, self._ends(request))
            return await self._serve(request, consuming.serve)
        finally:
            with suppress(PulsarException):
                await consumer.close()

    async def read(self, request: web.Request) -> web.StreamResponse:
        """Send the messages of a topic through a socket."""
        self._admit(request)
        given = _arguments(request.query, _READER)
        start = given.pop("start", MessageId.latest)
        window = given.setdefault("receiver_queue_size", RECEIVER_QUEUE)
        reader = await self._client.create_reader(topic_of(request), start, **given)
        try:
            return await self._serve(request, _Consuming(reader, window, False, self._ends(request)).serve)
        finally:
            with suppress(PulsarException):
                await reader.close()

    def _ends(self, request: web.Request) -> Callable[[], Awaitable[bool]]:
        """Return a call that says whether the topic was terminated.

        Nothing comes then behind what is there.
        """
        topic = topic_of(request)

        async def is_terminated() -> bool:
            stats = await self._call(self._call.admin.topics.stats_internal, topic)
            partitions = stats.get("partitions", {topic: stats}).values()
            return all(each["state"] == "Terminated" for each in partitions)

        return is_terminated

    def _admit(self, request: web.Request) -> None:
        """Refuse a request that is no handshake, and one too many.

        Opening a handle may make a topic or a subscription. A picture in a page of another site is
        asked for without Origin, but never with a handshake.
        """
        if not web.WebSocketResponse().can_prepare(request):
            raise Refusal(400, "only WebSockets are served here: the request is no handshake")
        if len(self._open) >= SOCKETS:
            raise Refusal(503, f"{SOCKETS} WebSockets are open: try again")

    async def _serve(
        self, request: web.Request, serve: Callable[[web.WebSocketResponse], Awaitable[None]]
    ) -> web.StreamResponse:
        socket = web.WebSocketResponse(heartbeat=PING_S, max_msg_size=FRAME_BYTES)
        await socket.prepare(request)
        self._open.add(socket)
        try:
            await serve(socket)
        finally:
            self._open.discard(socket)
            await socket.close()
        return socket


class _Producing:
    """Publishes each frame, so many under way, and answers when it is durable."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._under_way = 0
        self._answers: deque[dict[str, Any]] = deque()
        self._are_ready = asyncio.Event()
        self._was_answered = asyncio.Event()

    async def serve(self, socket: web.WebSocketResponse) -> None:
        """Publish until the other end leaves; what was begun is answered before that ends."""
        answering = asyncio.create_task(self._answer_all(socket))
        try:
            async for frame in socket:
                if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                self._publish(frame.data)
                # A writer is not read further while this many are under way: that is its back-pressure.
                await self._fewer_than(SENDS_UNDER_WAY)
        finally:
            await self._fewer_than(1)
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _fewer_than(self, limit: int) -> None:
        while self._under_way >= limit:
            self._was_answered.clear()
            await self._was_answered.wait()

    def _publish(self, frame: str | bytes) -> None:
        self._under_way += 1
        context = {}
        try:
            sent = _frame(frame)
        except ValueError as error:
            self._answer({"result": _NO_JSON, "errorMsg": str(error), **_NUMBERS})
            return
        if "context" in sent:
            context["context"] = sent["context"]
        try:
            receipt = self._producer.begin_send(**_message(sent))
        except (PulsarException, ValueError, TypeError) as error:
            self._answer(_refused(error, context))
        else:
            receipt.add_done_callback(partial(self._settled, context))

    def _settled(self, context: dict[str, Any], receipt: asyncio.Future[MessageId]) -> None:
        error = receipt.exception()
        if isinstance(error, Exception):
            self._answer(_refused(error, context))
        else:
            self._answer({"result": "ok", "messageId": as_base64(receipt.result()), **_NUMBERS, **context})

    def _answer(self, answer: dict[str, Any]) -> None:
        self._answers.append(answer)
        self._are_ready.set()

    async def _answer_all(self, socket: web.WebSocketResponse) -> None:
        while True:
            await self._are_ready.wait()
            self._are_ready.clear()
            while self._answers:
                with suppress(ConnectionError):
                    await socket.send_json(self._answers.popleft())
                self._under_way -= 1
                self._was_answered.set()


def _refused(error: Exception, context: dict[str, Any]) -> dict[str, Any]:
    return {"result": _SEND_ERROR, "errorMsg": text_of(error), **_NUMBERS, **context}


class _Consuming:
    """Sends messages while there are permits; an acknowledgment gives one back.

    In pull mode permits come by frames alone.
    """

    def __init__(
        self, consumer: Any, permits: int, pulls: bool, is_terminated: Callable[[], Awaitable[bool]]
    ) -> None:
        self._consumer = consumer
        self._is_terminated = is_terminated
        self._permits = permits
        self._pulls = pulls
        self._more = asyncio.Event()
        self._is_reader = not isinstance(consumer, Consumer)
        self._is_over = False

    async def serve(self, socket: web.WebSocketResponse) -> None:
        """Send messages, and carry out what the other end says, until it leaves."""
        sending = asyncio.create_task(self._send_all(socket))
        listening = asyncio.create_task(self._listen(socket))
        tasks = {sending, listening}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ended:
            if isinstance(end, PulsarException) and not isinstance(end, AlreadyClosed):
                reason = text_of(end).encode()[:120]
                await socket.close(code=WSCloseCode.INTERNAL_ERROR, message=reason)

    async def _send_all(self, socket: web.WebSocketResponse) -> None:
        while True:
            while self._permits <= 0:
                self._more.clear()
                await self._more.wait()
            message = await self._next()
            self._permits -= 1
            # A reader that takes nothing holds this up, and with it its own permits.
            await socket.send_json(_described(message))

    async def _next(self) -> Message:
        message: Message = await (self._consumer.read_next() if self._is_reader else self._consumer.receive())
        return message

    async def _listen(self, socket: web.WebSocketResponse) -> None:
        async for frame in socket:
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            try:
                await self._carry_out(socket, _frame(frame.data))
            except (ValueError, PulsarException) as error:
                if isinstance(error, AlreadyClosed):
                    return
                await socket.send_json({"errorMsg": text_of(error)})
            if self._is_over:
                return

    async def _carry_out(self, socket: web.WebSocketResponse, command: dict[str, Any]) -> None:
        kind = command.get("type", "acknowledge")
        if kind == "isEndOfTopic":
            is_over = await self._is_terminated() and not await self._consumer.has_message_available()
            await socket.send_json({"endOfTopic": is_over})
        elif kind == "permit":
            count = command.get("permitMessages")
            if type(count) is not int or count < 0:
                raise ValueError(f"permitMessages={count!r:.100}: send a whole number")
            self._give(count)
        elif kind in ("acknowledge", "negativeAcknowledge"):
            message_id = _given_id(command.get("messageId"))
            if not self._is_reader and kind == "acknowledge":
                await self._consumer.acknowledge(message_id)
            elif not self._is_reader:
                await self._consumer.negative_acknowledge(message_id)
            if not self._pulls:
                self._give(1)
        elif kind == "unsubscribe" and not self._is_reader:
            await self._consumer.unsubscribe()
            self._is_over = True
        else:
            raise ValueError(
                f"type={kind!r:.100}: send acknowledge, negativeAcknowledge, permit, unsubscribe or "
                "isEndOfTopic"
            )

    def _give(self, permits: int) -> None:
        self._permits = min(self._permits + permits, 2**31)
        self._more.set()


def as_base64(message_id: MessageId) -> str:
    """Return an id as frames have it: Pulsar's MessageIdData in base64."""
    return base64.b64encode(message_id.serialize()).decode()


def _given_id(text: Any) -> MessageId:
    try:
        return MessageId.deserialize(base64.b64decode(text, validate=True))
    except (TypeError, ValueError, binascii.Error):
        raise ValueError(f"messageId={text!r:.100}: send the messageId of a message") from None


def _frame(data: str | bytes) -> dict[str, Any]:
    try:
        frame = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the frame is no JSON: {error}") from None
    if not isinstance(frame, dict):
        raise ValueError("the frame is no JSON object")
    return frame


def _message(frame: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `send`. Raises ValueError for a frame that is no message."""
    try:
        content = base64.b64decode(frame["payload"], validate=True)
    except KeyError:
        raise ValueError("the frame has no payload: send it in base64") from None
    except (TypeError, ValueError, binascii.Error) as error:
        raise ValueError(f"the payload is no base64: {error}") from None
    arguments: dict[str, Any] = {"content": content}
    properties = frame.get("properties")
    if properties is not None:
        if not isinstance(properties, dict):
            raise ValueError(f"properties={properties!r:.100}: send an object of texts")
        arguments["properties"] = properties
    if frame.get("key"):
        arguments["partition_key"] = frame["key"]
    if frame.get("eventTime"):
        arguments["event_timestamp"] = _time_ms(frame["eventTime"])
    if frame.get("deliverAt"):
        arguments["deliver_at"] = frame["deliverAt"]
    if frame.get("deliverAfterMs"):
        arguments["deliver_at"] = due_ms(frame["deliverAfterMs"])
    return arguments


def _time_ms(text: Any) -> int:
    try:
        return utc_ms(str(text))
    except ValueError:
        raise ValueError(f"eventTime={text!r:.100}: send a time such as 2026-01-01T00:00:00Z") from None


def _described(message: Message) -> dict[str, Any]:
    described: dict[str, Any] = {
        "messageId": as_base64(message.message_id()),
        "payload": base64.b64encode(message.data()).decode(),
        "properties": message.properties(),
        "publishTime": as_time(message.publish_timestamp()),
        "redeliveryCount": message.redelivery_count(),
    }
    if message.event_timestamp():
        described["eventTime"] = as_time(message.event_timestamp())
    if message.partition_key():
        described["key"] = message.partition_key()
    if message.ordering_key():
        described["orderingKey"] = message.ordering_key()
    return described


# --- options of the query -------------------------------------------------------------------------

Option = tuple[str, Callable[[str], Any]]


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return text.lower() == "true"


def _one_of(names: Mapping[str, Any]) -> Callable[[str], Any]:
    def choose(text: str) -> Any:
        try:
            return names[text.lower()]
        except KeyError:
            raise ValueError(f"give one of {', '.join(names)}") from None

    return choose


def _start(text: str) -> MessageId:
    places = {"earliest": MessageId.earliest, "latest": MessageId.latest}
    return places[text.lower()] if text.lower() in places else _given_id(text)


_PRODUCER: dict[str, Option] = {
    "producerName": ("producer_name", str),
    "sendTimeoutMillis": ("send_timeout_millis", int),
    "batchingEnabled": ("batching_enabled", _flag),
    "batchingMaxMessages": ("batching_max_messages", int),
    "batchingMaxPublishDelay": ("batching_max_publish_delay_ms", int),
    "maxPendingMessages": ("max_pending_messages", int),
    "initialSequenceId": ("initial_sequence_id", int),
    "compressionType": (
        "compression_type",
        _one_of(
            {
                "none": CompressionType.NONE,
                "lz4": CompressionType.LZ4,
                "zlib": CompressionType.ZLib,
                "zstd": CompressionType.ZSTD,
                "snappy": CompressionType.SNAPPY,
            }
        ),
    ),
    "messageRoutingMode": (
        "message_routing_mode",
        _one_of(
            {
                "singlepartition": PartitionsRoutingMode.UseSinglePartition,
                "roundrobinpartition": PartitionsRoutingMode.RoundRobinDistribution,
            }
        ),
    ),
    "hashingScheme": (
        "hashing_scheme",
        _one_of(
            {
                "javastringhash": HashingScheme.JavaStringHash,
                "murmur3_32hash": HashingScheme.Murmur3_32Hash,
            }
        ),
    ),
    "batchingType": (
        "batching_type",
        _one_of({"default": BatchingType.Default, "keybased": BatchingType.KeyBased}),
    ),
}
_CONSUMER: dict[str, Option] = {
    "subscriptionType": (
        "consumer_type",
        _one_of(
            {
                "exclusive": ConsumerType.Exclusive,
                "shared": ConsumerType.Shared,
                "failover": ConsumerType.Failover,
                "key_shared": ConsumerType.KeyShared,
            }
        ),
    ),
    "subscriptionInitialPosition": (
        "initial_position",
        _one_of({"latest": InitialPosition.Latest, "earliest": InitialPosition.Earliest}),
    ),
    "receiverQueueSize": ("receiver_queue_size", int),
    "consumerName": ("consumer_name", str),
    "ackTimeoutMillis": ("unacked_messages_timeout_ms", int),
    "negativeAckRedeliveryDelay": ("negative_ack_redelivery_delay_ms", int),
    "subscriptionMode": (
        "subscription_mode",
        _one_of({"durable": SubscriptionMode.Durable, "nondurable": SubscriptionMode.NonDurable}),
    ),
    "priorityLevel": ("priority_level", int),
    "maxRedeliverCount": ("max_failures", int),
    "deadLetterTopic": ("dead_letter_topic", str),
    "pullMode": ("pulls", _flag),
}
_READER: dict[str, Option] = {
    "messageId": ("start", _start),
    "readerName": ("reader_name", str),
    "receiverQueueSize": ("receiver_queue_size", int),
}
_PASSED_OVER = {"token"}


def _arguments(query: Mapping[str, str], options: Mapping[str, Option]) -> dict[str, Any]:
    """Return keywords for the client.

    Raises Refusal for a parameter that is unknown or means nothing.
    """
    arguments = {}
    for name, text in query.items():
        if name in _PASSED_OVER:
            continue
        if name not in options:
            raise Refusal(
                400, f"Invalid query params: there is no {name[:100]}; there are {', '.join(options)}"
            )
        keyword, convert = options[name]
        try:
            arguments[keyword] = convert(text)
        except ValueError as error:
            raise Refusal(400, f"Invalid query params: {name}={text[:100]}: {error}") from None
    return arguments


def _dead_letter_policy(failures: int | None, topic: str | None) -> ConsumerDeadLetterPolicy:
    if failures is None:
        raise Refusal(400, "Invalid query params: deadLetterTopic needs maxRedeliverCount")
    return ConsumerDeadLetterPolicy(failures) if topic is None else ConsumerDeadLetterPolicy(failures, topic)
