"""Creating, moving and deleting durable subscriptions, with and without consumers connected."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.client.options.checks import check_flag, check_properties, check_text
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.schemas.readings import SchemaReadings
from pulsar_ray.errors import (
    InvalidConfiguration,
    NotAllowedError,
    OperationNotSupported,
    PulsarException,
    SubscriptionNotFound,
)
from pulsar_ray.format.chunked_payload import ChunkedPayload
from pulsar_ray.format.payload import DecodedBlock, decode_block
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.registrations import check_subscription_properties
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray.schema.auto import AutoSchema
from pulsar_ray.transport.cluster import PartitionRoute

MAX_PEEKED_MESSAGES = 100_000
_PAGE_MESSAGES = 10_000
_ALL = 1 << 62
_BEGUN_MESSAGES = 10
"""So many messages in chunks are kept until they are whole, as in consumers."""


class TopicSubscriptions:
    """Changes of durable subscriptions, made by their dispatchers on each partition that has them."""

    def __init__(self, calls: TopicCalls) -> None:
        self._calls = calls

    def create(
        self,
        topic: str,
        subscription: str,
        position: MessageId | str = "earliest",
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Register a new subscription on every partition, whose dispatchers are not started."""
        check_text("subscription", subscription)
        check_properties("properties", properties)
        check_subscription_properties(properties or {})
        if not subscription:
            raise InvalidConfiguration("the subscription's name is empty: give one")
        initial = _target(position)
        if isinstance(initial, int):
            raise ValueError(f'position={position!r}: give "earliest", "latest" or a MessageId')
        routes = self._calls.routes(topic)
        if isinstance(initial, list):
            self._check_place(topic, routes, position)
        for route in routes:
            self._calls.ask_partition(route, "check_new_subscription", name=subscription)
        for route in routes:
            self._calls.ask_partition(
                route,
                "register_subscription",
                name=subscription,
                durable=True,
                initial=initial,
                properties=dict(properties or {}),
                create=True,
            )

    def set_properties(
        self, topic: str, subscription: str, properties: Mapping[str, str], *, replace: bool
    ) -> None:
        """Change properties at the partitions, and have the dispatchers heed them."""
        check_properties("properties", properties)
        routes = self._routes_with(topic, subscription)
        self._check(routes, subscription)
        for route in routes:
            self._calls.ask_partition(
                route,
                "set_subscription_properties",
                name=subscription,
                properties=dict(properties),
                replace=replace,
            )
        for route in routes:
            self._calls.ask_dispatcher(route, subscription, "refresh_properties")

    def delete(self, topic: str, subscription: str, force: bool = False) -> None:
        """Have the dispatchers delete a subscription, and end."""
        check_flag("force", force)
        routes = self._routes_with(topic, subscription)
        if not force:
            self._check(routes, subscription, unconnected=True)
        deleted: list[str] = []
        for route in routes:
            try:
                self._calls.ask_dispatcher(route, subscription, "delete", force=force)
            except SubscriptionNotFound:
                continue  # done by an earlier attempt whose answer was lost
            except NotAllowedError as refused:
                raise self._came_meanwhile(refused, deleted) from None
            self._calls.forget_dispatcher(route, subscription)
            deleted.append(route.topic)

    def _came_meanwhile(self, refused: NotAllowedError, deleted: list[str]) -> PulsarException:
        """The refusal for a consumer that has come since all were asked."""
        error = refused.again()
        if deleted:
            error.text += f" (deleted already on {', '.join(deleted)})"
        return error

    def skip(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first so many unacknowledged entries of the only partition."""
        count = _count("count", count, least=0)
        routes = self._routes_with(topic, subscription)
        if self._is_partitioned(topic, routes):
            raise OperationNotSupported(
                f"{topic} is partitioned, so its first {count} messages are not defined: "
                f"give one partition, for instance {routes[0].topic}"
            )
        return self._skip(routes[0], subscription, count) if count else 0

    def skip_all(self, topic: str, subscription: str) -> int:
        """Acknowledge everything stored by now on all partitions."""
        routes = self._routes_with(topic, subscription)
        self._check(routes, subscription)
        return sum(self._skip(route, subscription, None) for route in routes)

    def _skip(self, route: PartitionRoute, subscription: str, entries: int | None) -> int:
        # Two calls, of which the second may be repeated when its answer is lost.
        end = self._calls.ask_dispatcher(route, subscription, "end_of_skip", entries=entries)
        self._calls.ask_dispatcher(route, subscription, "acknowledge_through", position=end["position"])
        return int(end["entries"])

    def expire(self, topic: str, subscription: str, older_than_seconds: float) -> int:
        """Acknowledge what is older than so many seconds; returns how many entries that were."""
        before_ms = _before_ms(older_than_seconds)
        routes = self._routes_with(topic, subscription)
        self._check(routes, subscription)
        return sum(
            int(self._calls.ask_dispatcher(route, subscription, "expire", published_before_ms=before_ms))
            for route in routes
        )

    def expire_through(
        self, topic: str, subscription: str, message_id: MessageId, *, is_excluded: bool
    ) -> int:
        """Acknowledge the messages of one partition up to one; returns how many entries that were."""
        place = _target(message_id)
        routes = self._routes_with(topic, subscription)
        if place == "earliest":
            return 0
        if place == "latest":
            return self.skip_all(topic, subscription)
        if not isinstance(place, list):
            raise ValueError(f"{message_id!r}: give a MessageId")
        route = self._route_of(topic, routes, message_id)
        ledger_id, entry_id = place
        last = [ledger_id, entry_id - is_excluded]
        call = "acknowledge_messages_through"
        return int(self._calls.ask_dispatcher(route, subscription, call, position=last))

    def expire_all(self, topic: str, older_than_seconds: float) -> dict[str, int]:
        """Expire the messages of every durable subscription; returns the entries of each."""
        before_ms = _before_ms(older_than_seconds)
        expired: dict[str, int] = {}
        concerned: dict[str, list[PartitionRoute]] = {}
        for route in self._calls.routes(topic):
            partition = self._calls.serving_stats(route)
            for known in partition["subscriptions"]:
                expired[known["name"]] = 0
                if known["isServed"] or known["markDeletePosition"] != partition["lastPosition"]:
                    concerned.setdefault(known["name"], []).append(route)
        for name, routes in concerned.items():
            self._check(routes, name)
        for name, routes in concerned.items():
            for route in routes:
                asked = self._calls.ask_dispatcher(route, name, "expire", published_before_ms=before_ms)
                expired[name] += int(asked)
        return expired

    def reset_cursor(self, topic: str, subscription: str, to: MessageId | int | str) -> None:
        """Have the dispatchers move a cursor to a message, a time, or an end."""
        target = _target(to)
        routes = self._routes_with(topic, subscription)
        if isinstance(target, list):
            assert isinstance(to, MessageId)
            routes = [self._route_of(topic, routes, to)]
        self._check(routes, subscription)
        for route in routes:
            self._calls.ask_dispatcher(route, subscription, "reset", target=target)

    def peek(self, topic: str, subscription: str, count: int = 1) -> list[Message]:
        """Read the first so many unacknowledged messages, partition by partition."""
        return list(self._peeked(topic, subscription, _count("count", count, least=1)))

    def peek_at(self, topic: str, subscription: str, place: int) -> Message | None:
        """Read the unacknowledged message at a place; None if there are fewer.

        It holds one at a time.
        """
        place = _count("place", place, least=1)
        peeked = self._peeked(topic, subscription, place)
        return next(islice(peeked, place - 1, None), None)

    def _peeked(self, topic: str, subscription: str, count: int) -> Iterator[Message]:
        if count > MAX_PEEKED_MESSAGES:
            raise ValueError(f"count={count}: at most {MAX_PEEKED_MESSAGES} messages; subscribe to get more")
        readings = SchemaReadings(AutoSchema(), self._find_schema)
        for block, rows in self.waiting(topic, subscription, count, whole=True):
            if block.schema_version:
                reading = block.schema = readings.of_topic(block.topic_name).of(block.schema_version)
                # The messages may be looked at when the admin is closed.
                reading.prepare()
            for row in rows:
                yield Message(block, row)

    def _find_schema(self, topic: str, version: int) -> TopicSchema:
        return TopicSchema.of(self._calls.ask_controller("call_part", "schemas", "get", topic, version))

    def waiting(
        self,
        topic: str,
        subscription: str,
        count: int | None = None,
        *,
        readable: bool = False,
        whole: bool = False,
    ) -> Iterator[BlockRows]:
        """Read unacknowledged messages piece by piece, partition by partition; all without a `count`.

        A message in chunks is its chunks, or with `whole` itself, once all of them are there. Raises the
        error of a block that cannot be decoded, with its message id; `readable` leaves that out.
        """
        left = _ALL if count is None else count
        for route in self._routes_with(topic, subscription):
            behind: list[int] | None = [-1, -1]
            decoded = _WholeMessages(route).decoded if whole else partial(_decoded, route)
            while behind is not None and left > 0:
                asked = min(left, _PAGE_MESSAGES)
                answer = self._calls.ask_dispatcher(
                    route, subscription, "peek", messages=asked, behind=behind
                )
                for described in answer["blocks"]:
                    try:
                        parts = decoded(*described)
                    except PulsarException:
                        if not readable:
                            raise
                        continue
                    for part in parts:
                        left -= len(part.rows)
                        yield part
                behind = answer["end"]

    # --- partitions -------------------------------------------------------------------------------

    def _check(self, routes: list[PartitionRoute], subscription: str, *, unconnected: bool = False) -> None:
        """Start all dispatchers at once, and ask each before the first changes anything.

        Raises what keeps one from serving, and NotAllowedError if consumers are connected to an `unconnected`
        one, those included that sleep with it.
        """
        for route in routes:
            self._calls.wake_dispatcher(route, subscription)
        for route in routes:
            self._calls.ask_dispatcher(route, subscription, "check", unconnected=unconnected)

    def _registered(self, route: PartitionRoute) -> set[str]:
        return {one["name"] for one in self._calls.serving_stats(route)["subscriptions"] if one["durable"]}

    def _routes_with(self, topic: str, subscription: str) -> list[PartitionRoute]:
        """The partitions that have the subscription. Raises SubscriptionNotFound if none has."""
        check_text("subscription", subscription)
        routes = [route for route in self._calls.routes(topic) if subscription in self._registered(route)]
        if not routes:
            raise SubscriptionNotFound(f"Subscription {subscription!r} not found for topic {topic}")
        return routes

    def _is_partitioned(self, topic: str, routes: list[PartitionRoute]) -> bool:
        return routes[0].topic != TopicName.parse(topic).full

    def _check_place(self, topic: str, routes: list[PartitionRoute], position: MessageId | str) -> None:
        if self._is_partitioned(topic, routes):
            raise OperationNotSupported(
                f"{position} is the id of a message of one partition, {topic} has {len(routes)}: create the "
                'subscription at "earliest" or "latest" and reset its cursor, or give one partition'
            )
        self._route_of(topic, routes, position)

    def _route_of(self, topic: str, routes: list[PartitionRoute], position: Any) -> PartitionRoute:
        """The partition an id is of."""
        known = position.topic_name
        for route in routes:
            if known == route.topic or (not known and route.partition == position.partition()):
                return route
        if known:
            raise InvalidConfiguration(f"{position} is an id of {known}: give an id of {topic}")
        if not self._is_partitioned(topic, routes):
            return routes[0]
        raise OperationNotSupported(
            f"{position} does not say which partition of {topic} it is of: give one partition, "
            f"for instance {routes[0].topic}"
        )


def _target(position: Any) -> str | int | list[int]:
    if position in ("earliest", "latest"):
        return str(position)
    if isinstance(position, MessageId):
        position.check()
        if position == MessageId.earliest:
            return "earliest"
        if position == MessageId.latest:
            return "latest"
        return [position.ledger_id(), position.entry_id()]
    if isinstance(position, int) and not isinstance(position, bool) and 0 <= position < 2**63:
        return position
    raise ValueError(
        f'{position!r}: give "earliest", "latest", a MessageId, or (reset_cursor) a publish time in ms'
    )


def _count(name: str, value: Any, *, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name}={value!r}: give an int of at least {least}")
    return value


def _before_ms(older_than_seconds: Any) -> int:
    if isinstance(older_than_seconds, bool) or not isinstance(older_than_seconds, (int, float)):
        raise ValueError(f"older_than_seconds={older_than_seconds!r}: give a number of seconds")
    if not 0 <= older_than_seconds <= time.time():
        raise ValueError(f"older_than_seconds={older_than_seconds!r}: give 0 or more seconds of the past")
    return int((time.time() - older_than_seconds) * 1000)


class _WholeMessages:
    """Decodes a partition's blocks in their order, and joins messages in chunks."""

    def __init__(self, route: PartitionRoute) -> None:
        self._route = route
        self._begun: dict[str, list[tuple[tuple[int, int], bytes]]] = {}
        """The places and bytes of the chunks so far, by the messages' names."""

    def decoded(
        self, ledger_id: int, first_entry_id: int, rows: Any, count: int, data: bytes
    ) -> list[BlockRows]:
        """Decode a block; a message in chunks comes with the last one.

        It never comes if its first chunks are gone.
        """
        parts = _decoded(self._route, ledger_id, first_entry_id, rows, count, data)
        chunk = parts[0].block.decoded.metadata.chunk if parts else None
        if chunk is None:
            return parts
        pieces = self._begun.pop(chunk.uuid, [])
        if len(pieces) != chunk.chunk_id:
            return []
        pieces.append(((ledger_id, first_entry_id), data))
        if chunk.chunk_id + 1 < chunk.num_chunks:
            self._begun[chunk.uuid] = pieces
            if len(self._begun) > _BEGUN_MESSAGES:
                # The one that got no chunk for longest.
                del self._begun[next(iter(self._begun))]
            return []
        with _naming(self._route, ledger_id, first_entry_id):
            payload = ChunkedPayload(sum(len(piece) for _, piece in pieces))
            for _, piece in pieces:
                payload.add(piece)
            block = _received(self._route, payload.decoded(), ledger_id, first_entry_id, count)
        block.first_chunk = pieces[0][0]
        return [BlockRows(block, range(1))]


@contextmanager
def _naming(route: PartitionRoute, ledger_id: int, entry_id: int) -> Iterator[None]:
    """Name the block that cannot be decoded."""
    try:
        yield
    except PulsarException as error:
        place = MessageId(route.partition, ledger_id, entry_id, topic_name=route.topic)
        raise error.of_message(place) from None


def _received(
    route: PartitionRoute, decoded: DecodedBlock, ledger_id: int, first_entry_id: int, count: int
) -> ReceivedBlock:
    return ReceivedBlock(
        decoded,
        topic_name=route.topic,
        partition=route.partition,
        ledger_id=ledger_id,
        first_entry_id=first_entry_id,
        redelivery_count=count,
    )


def _decoded(
    route: PartitionRoute, ledger_id: int, first_entry_id: int, rows: Any, count: int, data: bytes
) -> list[BlockRows]:
    with _naming(route, ledger_id, first_entry_id):
        decoded = decode_block(data, 0, route.topic)
    block = _received(route, decoded, ledger_id, first_entry_id, count)
    return [BlockRows(block, range(start, end)) for start, end in rows]
