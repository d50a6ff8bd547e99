"""Sending messages of a dead letter topic back to where they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain

from pulsar_ray.admin.stored_letters import stored_letters
from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.admin.topic_inspection import TopicInspection
from pulsar_ray.admin.topic_subscriptions import TopicSubscriptions
from pulsar_ray.client.client import Client
from pulsar_ray.client.dead_letters.letters import (
    REAL_TOPIC,
    UNREADABLE_BLOCK,
    joined_columns,
    origin_id,
    original_columns,
)
from pulsar_ray.client.dead_letters.sent_copies import send_copies
from pulsar_ray.client.options.checks import check_flag, check_number, check_optional_text
from pulsar_ray.client.options.policies import ConsumerBatchReceivePolicy
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import BlockRows, Rows
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.schemas.registration import Writer, schema_of_copies, writer_of
from pulsar_ray.errors import (
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    PulsarException,
    SubscriptionNotFound,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_name import TopicName

UNADDRESSED = ""
"""The topic of messages that do not say, or say wrongly, where they came from."""
_AT_ONCE = 1000
_AT_ONCE_BYTES = 32 << 20
_QUIET_MS = 1000
_NAMED = 10
"""An error names at most so many topics."""


class Redrive:
    """Moves the unacknowledged messages of a subscription of a dead letter topic.

    Only messages that are stored when it begins.
    Copies are durable before their messages are acknowledged. `new_client` connects to the broker.
    """

    def __init__(
        self,
        calls: TopicCalls,
        inspection: TopicInspection,
        subscriptions: TopicSubscriptions,
        new_client: Callable[[], Client],
    ) -> None:
        self._calls = calls
        self._inspection = inspection
        self._subscriptions = subscriptions
        self._new_client = new_client

    def run(
        self,
        topic: str,
        to: str | None,
        subscription: str | None,
        limit: int | None,
        *,
        dry_run: bool,
        progress: Callable[[int], None],
    ) -> dict[str, int]:
        """How many messages went, or would go, to each topic, as `Topics.redrive`."""
        check_optional_text("to", to)
        check_optional_text("subscription", subscription)
        if limit is not None:
            check_number("limit", limit, 1)
        check_flag("dry_run", dry_run)
        source = TopicName.parse(topic).partitioned_full
        targets = _Targets(source, None if to is None else TopicName.parse(to).full)
        subscription = subscription or self._only_subscription(topic)
        if dry_run:
            return self._count(topic, subscription, targets, limit, progress)
        with self._new_client() as client:
            ends = self._ends(topic)
            return self._move(client, topic, subscription, targets, ends, limit, progress)

    def _only_subscription(self, topic: str) -> str:
        names = self._inspection.subscriptions(topic)
        if len(names) == 1:
            return names[0]
        if not names:
            raise SubscriptionNotFound(
                f"{topic} has no subscription, so that nothing in it waits: create one at the earliest "
                "message (topics create-subscription), and name it"
            )
        raise InvalidConfiguration(
            f"{topic} has the subscriptions {', '.join(names)}: name the one whose messages are to go back"
        )

    def _ends(self, topic: str) -> dict[str, Position]:
        """The last position of each partition: what fails and comes back meanwhile is left."""
        return {
            route.topic: Position(*self._calls.last_message(route)["position"])
            for route in self._calls.routes(topic)
        }

    # --- counting ---------------------------------------------------------------------------------

    def _count(
        self,
        topic: str,
        subscription: str,
        targets: _Targets,
        limit: int | None,
        progress: Callable[[int], None],
    ) -> dict[str, int]:
        counts: Counter[str] = Counter()
        left = limit
        for block, rows in self._subscriptions.waiting(topic, subscription, readable=True):
            chunk = block.decoded.metadata.chunk
            if chunk is not None and chunk.chunk_id < chunk.num_chunks - 1:
                continue  # the last one counts for the message
            found = targets.rows_of(block, rows)
            counts[UNADDRESSED] += len(found.pop(UNADDRESSED, ()))
            for target, numbers in _first(found, left).items():
                counts[target] += len(numbers)
                progress(len(numbers))
                left = None if left is None else left - len(numbers)
            if left == 0:
                break
        return dict(+counts)

    # --- moving -----------------------------------------------------------------------------------

    def _move(
        self,
        client: Client,
        topic: str,
        subscription: str,
        targets: _Targets,
        ends: dict[str, Position],
        limit: int | None,
        progress: Callable[[int], None],
    ) -> dict[str, int]:
        self._check_exists(topic, subscription)
        consumer = client.subscribe(
            topic,
            subscription,
            ConsumerType.Shared,
            batch_receive_policy=ConsumerBatchReceivePolicy(_AT_ONCE, _AT_ONCE_BYTES, _QUIET_MS),
        )
        counts: Counter[str] = Counter()
        outbox = _Outbox(lambda target, writer: self._producer(client, target, writer))
        left = limit
        for parts in stored_letters(consumer, ends):
            by_target: dict[tuple[str, Writer], list[BlockRows]] = {}
            for block, rows in parts:
                found, writer = targets.rows_of(block, rows), writer_of(block)
                counts[UNADDRESSED] += len(found.pop(UNADDRESSED, ()))
                found = {target: numbers for target, numbers in found.items() if outbox.takes(target, writer)}
                for target, numbers in _first(found, left).items():
                    by_target.setdefault((target, writer), []).append(BlockRows(block, numbers))
                    left = None if left is None else left - len(numbers)
            for (target, writer), taken in by_target.items():
                if went := outbox.send(target, writer, taken):
                    consumer.acknowledge_moved(went)
                    moved = sum(len(part.rows) for part in went)
                    counts[target] += moved
                    progress(moved)
            if left == 0 or targets.given in outbox.refused:
                break
        consumer.close()
        if outbox.refused or outbox.too_big:
            raise _refusal(outbox, counts)
        return dict(+counts)

    def _check_exists(self, topic: str, subscription: str) -> None:
        """Raise SubscriptionNotFound, instead of creating a subscription by consuming."""
        if subscription not in self._inspection.subscriptions(topic):
            raise SubscriptionNotFound(f"Subscription {subscription!r} not found for topic {topic}")

    def _keeps_nothing(self, target: str) -> bool:
        for route in self._calls.routes(target):
            if any(known["durable"] for known in self._calls.serving_stats(route)["subscriptions"]):
                return False
        asked = "policies", target, "retention"
        (retention,) = self._calls.ask_controller("call_part", "administration", *asked)
        return not all(retention.value.values())

    def _producer(self, client: Client, target: str, writer: Writer) -> Producer:
        # It is not created, and must be read: nobody would get the messages else.
        if self._keeps_nothing(target):
            raise NotAllowedError(
                f"{target} has no subscription and no retention, so it would not keep the messages: "
                "subscribe to it first, or give another topic"
            )
        # In chunks go letters that came so, if the topic can have them.
        is_chunking = TopicName.parse(target).is_persistent
        return client.create_producer(
            target,
            schema=schema_of_copies(writer),
            block_if_queue_full=True,
            batching_enabled=False,
            chunking_enabled=is_chunking,
        )


class _Outbox:
    """Sends copies to many topics.

    A topic that fails gets nothing more, and is in `refused`; a letter that its topic does not take keeps no
    other from going, and is counted in `too_big`.
    """

    def __init__(self, new_producer: Callable[[str, Writer], Producer]) -> None:
        self._new_producer = new_producer
        self._producers: dict[tuple[str, Writer], Producer] = {}
        self.refused: dict[str, PulsarException] = {}
        self.too_big: dict[str, list[str]] = {}
        """The first ids of letters that were too large, by topic."""
        self.too_big_count = 0
        self.too_big_error: PulsarException | None = None

    def takes(self, target: str, writer: Writer) -> bool:
        """Whether copies can be sent to a topic; opens a producer."""
        if (target, writer) not in self._producers and target not in self.refused:
            try:
                self._producers[target, writer] = self._new_producer(target, writer)
            except PulsarException as error:
                self.refused[target] = error
        return target not in self.refused

    def send(self, target: str, writer: Writer, letters: list[BlockRows]) -> list[BlockRows]:
        """Those of letters whose copies are durable in a topic that takes them."""
        copies = [original_columns(*part) for part in letters]
        sent = send_copies(self._producers[target, writer], joined_columns(copies))
        if sent.error is not None:
            if not isinstance(sent.error, PulsarException):
                raise sent.error
            self.refused[target] = sent.error
        went: list[BlockRows] = []
        start = 0
        for block, rows in letters:
            kept = [row for at, row in enumerate(rows, start) if at < sent.end and at not in sent.too_big]
            if kept:
                went.append(BlockRows(block, kept))
            for at, error in sent.too_big.items():
                if start <= at < start + len(rows):
                    self._note_too_big(target, origin_id(block, rows[at - start]), error)
            start += len(rows)
        return went

    def _note_too_big(self, target: str, letter: str, error: PulsarException) -> None:
        self.too_big_error = self.too_big_error or error
        self.too_big_count += 1
        if self.too_big_count <= _NAMED:
            self.too_big.setdefault(target, []).append(letter)


def _refusal(outbox: _Outbox, counts: Counter[str]) -> PulsarException:
    """The first error of a topic or letter, which also tells of the others."""
    first = next(iter(outbox.refused.values()), outbox.too_big_error)
    assert first is not None
    error = first.again()
    stay = []
    if outbox.too_big_count:
        named = "; ".join(f"{', '.join(ids)} for {target}" for target, ids in outbox.too_big.items())
        stay.append(f"letters too large for their topic stay (ids {named}; {outbox.too_big_count} letters)")
    if refused := outbox.refused:
        topics = ", ".join(list(refused)[:_NAMED])
        stay.append(f"messages for {topics} stay ({len(refused)} topics failed)")
    went = [f"{count} to {target}" for target, count in counts.most_common(_NAMED) if target and count]
    error.text = f"{error.text}; {'; '.join(stay)}; others went: {', '.join(went) or 'none'}"
    return error


def _first(found: dict[str, list[int]], limit: int | None) -> dict[str, list[int]]:
    """The first so many rows."""
    if limit is None:
        return found
    allowed = set(sorted(chain.from_iterable(found.values()))[:limit])
    kept = {target: [row for row in rows if row in allowed] for target, rows in found.items()}
    return {target: rows for target, rows in kept.items() if rows}


class _Targets:
    """Where messages go: to one topic for all, or to that in their `REAL_TOPIC`.

    One that is no topic's name, or that of where they are, is as none.
    """

    def __init__(self, source: str, given: str | None) -> None:
        self._source = source
        self.given = given
        self._names: dict[str, str] = {}
        if given is not None and TopicName.parse(given).partitioned_full == source:
            raise InvalidConfiguration(
                f"messages of {source} cannot go back to {source} itself: give another topic"
            )

    def rows_of(self, block: ReceivedBlock, rows: Rows) -> dict[str, list[int]]:
        """Rows by their target.

        A letter whose value is a stored block that could not be decoded was never a message: it has none.
        """
        if self.given is not None and block.properties is None:
            return {self.given: list(rows)}
        found: dict[str, list[int]] = {}
        for row in rows:
            of_row = {} if block.properties is None else block.properties[row]
            target = self.given or self._target(of_row.get(REAL_TOPIC, UNADDRESSED))
            found.setdefault(UNADDRESSED if UNREADABLE_BLOCK in of_row else target, []).append(row)
        return found

    def _target(self, name: str) -> str:
        if name == UNADDRESSED:
            return name
        full = self._names.get(name)
        if full is None:
            full = self._addressed(name)
            self._names = {name: full, **dict(list(self._names.items())[:_AT_ONCE])}
        return full

    def _addressed(self, name: str) -> str:
        try:
            full = TopicName.parse(name).partitioned_full
        except InvalidTopicName:
            return UNADDRESSED
        return UNADDRESSED if full == self._source else full
