"""Pulsar's WebSocket API: producers, consumers and readers whose frames are JSON."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
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

logger = logging.getLogger(__name__)

FRAME_BYTES = 8 << 20
"""The largest frame: a payload of 5 MiB in base64, and its properties."""
SENDS_UNDER_WAY = 1000
BYTES_UNDER_WAY = 16 << 20
"""Of frames of one socket that are not answered yet; one more may come along."""
RECEIVER_QUEUE = 1000
SOCKETS = 1000
PING_S = 30.0
TAKEN_S = 60.0
"""How long the other end may take to make room for a frame."""
CLOSE_S = 5.0
"""How long the other end may take to confirm that a socket closes."""
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
        self._open: set[_Socket] = set()

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes."""
        routes.add("GET", f"/ws/v2/producer/{TOPIC}", Right.PRODUCE, self.produce)
        routes.add("GET", f"/ws/v2/consumer/{TOPIC}/{{subscription}}", Right.CONSUME, self.consume)
        routes.add("GET", f"/ws/v2/reader/{TOPIC}", Right.CONSUME, self.read)

    async def close(self) -> None:
        """End all sockets, and tell their other ends to come again."""
        await asyncio.gather(
            *(socket.close(WSCloseCode.GOING_AWAY, "the gateway stops") for socket in self._open)
        )
        for socket in self._open:
            socket.cut_off()

    async def produce(self, request: web.Request) -> web.StreamResponse:
        """Publish the frames of a socket."""
        self._admit(request)
        # A caller that waits for answers is not to wait for a batch to fill, unless the query says so.
        arguments = {"batching_max_publish_delay_ms": 1, **_arguments(request.query, _PRODUCER)}
        producer = await self._client.create_producer(topic_of(request), **arguments)
        try:
            return await self._serve(request, _Producing(producer).steps)
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
        window = _window(given)
        name = request.match_info["subscription"]
        consumer = await self._client.subscribe(topic_of(request), name, **given)
        try:
            consuming = _Consuming(consumer, 0 if pulls else window, pulls, self._ends(request))
            return await self._serve(request, consuming.steps)
        finally:
            with suppress(PulsarException):
                await consumer.close()

    async def read(self, request: web.Request) -> web.StreamResponse:
        """Send the messages of a topic through a socket."""
        self._admit(request)
        given = _arguments(request.query, _READER)
        start = given.pop("start", MessageId.latest)
        window = _window(given)
        reader = await self._client.create_reader(topic_of(request), start, **given)
        try:
            return await self._serve(request, _Consuming(reader, window, False, self._ends(request)).steps)
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
        self, request: web.Request, steps: Callable[[_Socket], tuple[Coroutine[Any, Any, None], ...]]
    ) -> web.StreamResponse:
        """Carry out the steps on a socket of their own, until one of them ends."""
        response = web.WebSocketResponse(timeout=CLOSE_S, heartbeat=PING_S, max_msg_size=FRAME_BYTES)
        await response.prepare(request)
        socket = _Socket(response, request.transport)
        self._open.add(socket)
        tasks = [asyncio.create_task(step) for step in steps(socket)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    await _end(socket, error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await socket.close()
            self._open.discard(socket)
        return response


async def _end(socket: _Socket, error: BaseException) -> None:
    """Close a socket for an error, unless its other end brought that."""
    if isinstance(error, (AlreadyClosed, ConnectionError)):
        return
    if isinstance(error, PulsarException):
        reason = text_of(error)
    else:
        logger.error("a WebSocket ended with an error", exc_info=error)
        reason = "something unexpected happened; the log of HTTP says what"
    await socket.close(WSCloseCode.INTERNAL_ERROR, reason)


class _Socket:
    """Holds one end of a WebSocket, and cuts off another that takes nothing for long.

    An end that reads nothing answers no ping either, but what waits for room to write does not learn of it.
    """

    def __init__(self, response: web.WebSocketResponse, transport: asyncio.Transport | None) -> None:
        self._response = response
        self._transport = transport

    async def frames(self) -> AsyncIterator[str | bytes]:
        """Give the frames of the other end until it closes the socket."""
        async for frame in self._response:
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            yield frame.data

    async def send(self, value: dict[str, Any]) -> None:
        """Send a frame. Raises ConnectionError where the other end has gone."""
        with self._within(TAKEN_S):
            await self._response.send_json(value)

    async def close(self, code: WSCloseCode = WSCloseCode.OK, reason: str = "") -> None:
        """Close the socket, and say why as far as there is room.

        Repeating it is harmless.
        """
        with self._within(CLOSE_S):
            await self._response.close(code=code, message=_cut(reason))

    def cut_off(self) -> None:
        """End the connection, with whatever waits to be sent."""
        if self._transport is not None:
            self._transport.abort()

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        deadline = asyncio.get_running_loop().call_later(seconds, self.cut_off)
        try:
            yield
        finally:
            deadline.cancel()


def _cut(reason: str) -> bytes:
    """Return so much of a text as a frame that closes has room for."""
    return reason.encode()[:120].decode(errors="ignore").encode()


class _Producing:
    """Publishes each frame, so many under way, and answers when it is durable."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._under_way = 0
        self._bytes_under_way = 0
        self._answers: deque[tuple[dict[str, Any], int]] = deque()
        """Each with the size of its frame."""
        self._are_ready = asyncio.Event()
        self._was_answered = asyncio.Event()

    def steps(self, socket: _Socket) -> tuple[Coroutine[Any, Any, None], ...]:
        """Publish and answer, until the other end leaves."""
        return self._publish_all(socket), self._answer_all(socket)

    async def _publish_all(self, socket: _Socket) -> None:
        async for frame in socket.frames():
            self._publish(frame)
            # A writer is not read further while this much is under way: that is its back-pressure.
            while self._under_way >= SENDS_UNDER_WAY or self._bytes_under_way >= BYTES_UNDER_WAY:
                self._was_answered.clear()
                await self._was_answered.wait()

    def _publish(self, frame: str | bytes) -> None:
        size_bytes = len(frame)
        self._under_way += 1
        self._bytes_under_way += size_bytes
        context = {}
        try:
            sent = _frame(frame)
        except ValueError as error:
            self._answer({"result": _NO_JSON, "errorMsg": str(error), **_NUMBERS}, size_bytes)
            return
        if "context" in sent:
            context["context"] = sent["context"]
        try:
            receipt = self._producer.begin_send(**_message(sent))
        except (PulsarException, ValueError, TypeError) as error:
            self._answer(_refused(error, context), size_bytes)
        else:
            receipt.add_done_callback(partial(self._settled, context, size_bytes))

    def _settled(self, context: dict[str, Any], size_bytes: int, receipt: asyncio.Future[MessageId]) -> None:
        error = receipt.exception()
        if isinstance(error, Exception):
            answer = _refused(error, context)
        else:
            answer = {"result": "ok", "messageId": as_base64(receipt.result()), **_NUMBERS, **context}
        self._answer(answer, size_bytes)

    def _answer(self, answer: dict[str, Any], size_bytes: int) -> None:
        self._answers.append((answer, size_bytes))
        self._are_ready.set()

    async def _answer_all(self, socket: _Socket) -> None:
        while True:
            await self._are_ready.wait()
            self._are_ready.clear()
            while self._answers:
                answer, size_bytes = self._answers.popleft()
                await socket.send(answer)
                self._under_way -= 1
                self._bytes_under_way -= size_bytes
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

    def steps(self, socket: _Socket) -> tuple[Coroutine[Any, Any, None], ...]:
        """Send messages, and carry out what the other end says, until it leaves."""
        return self._send_all(socket), self._listen(socket)

    async def _send_all(self, socket: _Socket) -> None:
        while True:
            while self._permits <= 0:
                self._more.clear()
                await self._more.wait()
            message = await self._next()
            self._permits -= 1
            # A reader that takes nothing holds this up, and with it its own permits.
            await socket.send(_described(message))

    async def _next(self) -> Message:
        message: Message = await (self._consumer.read_next() if self._is_reader else self._consumer.receive())
        return message

    async def _listen(self, socket: _Socket) -> None:
        async for frame in socket.frames():
            try:
                await self._carry_out(socket, _frame(frame))
            except (ValueError, PulsarException) as error:
                if isinstance(error, AlreadyClosed):
                    return
                await socket.send({"errorMsg": text_of(error)})
            if self._is_over:
                return

    async def _carry_out(self, socket: _Socket, command: dict[str, Any]) -> None:
        kind = command.get("type") or "acknowledge"
        if kind == "isEndOfTopic":
            is_over = await self._is_terminated() and not await self._consumer.has_message_available()
            await socket.send({"endOfTopic": is_over})
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


def _window(given: dict[str, Any]) -> int:
    """Return how many messages may be unacknowledged, and bound the queue as Pulsar does."""
    asked: int = given.get("receiver_queue_size", RECEIVER_QUEUE)
    queue = given["receiver_queue_size"] = min(asked, RECEIVER_QUEUE)
    return max(queue, 1)


def _dead_letter_policy(failures: int | None, topic: str | None) -> ConsumerDeadLetterPolicy:
    if failures is None:
        raise Refusal(400, "Invalid query params: deadLetterTopic needs maxRedeliverCount")
    return ConsumerDeadLetterPolicy(failures) if topic is None else ConsumerDeadLetterPolicy(failures, topic)
