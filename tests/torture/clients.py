"""Producers and consumers on threads, which write down what they were told, whatever happens to them."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from pulsar_ray import (
    Client,
    Consumer,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    Producer,
    ProducerAccessMode,
    Result,
)
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.model.topic_name import TopicName
from tests.faults.history.operations import (
    AcknowledgeOk,
    ConsumerOpening,
    CumulativeOk,
    Heard,
    Operation,
    ProducerOpened,
    Received,
    SeekInvoked,
    SeekOk,
    SendInvoked,
    SendOk,
    SendUnknown,
    digest_of,
    note,
    payload,
    source_of,
)
from tests.faults.journal import Journal, id_of
from tests.torture.clock import JumpingClock

RECEIVE_MS = 200
AGAIN_S = 0.1
FAILING_EACH = 7
ERROR = "error"
"""The kind of the record of an error that ended a life."""
CHUNK_BYTES = 10_000


class ProducerPlan(NamedTuple):
    """How a producer sends. `style` is sync, async (batched), many or single (unbatched, not awaited)."""

    style: str = "sync"
    most_bytes: int = 200
    keys: int = 0
    delayed_share: float = 0.0
    longest_delay_ms: int = 1_500
    fails: bool = False
    keeps_name: bool = False
    """Its successors have its name and send again what may not be stored: with deduplication."""
    chunks: bool = False
    access: ProducerAccessMode = ProducerAccessMode.Shared
    pause_ms: int = 8
    life_s: float = 1e9
    """How long one producer is used, about, until the next one is opened."""


class ConsumerPlan(NamedTuple):
    """How consumers of a subscription answer.

    `answers` is each (a receipt for each), grouped, cumulative.
    """

    subscription: str
    kind: ConsumerType = ConsumerType.Shared
    answers: str = "each"
    consumers: int = 2
    nacked_share: float = 0.0
    letters_after: int = 0
    retries: bool = False
    seek_share: float = 0.0
    life_s: float = 1e9
    queue_size: int = 50

    @property
    def ordering(self) -> str:
        """As a history has it."""
        if self.kind == ConsumerType.KeyShared:
            return "key"
        return "none" if self.kind == ConsumerType.Shared else "partition"


class Notes:
    """Where the operations of one topic's clients go, and what they have reached so far.

    Exclusive producers had `turns` already in processes that died.
    """

    def __init__(self, directory: Path, topic: str, clock: JumpingClock, turns: int = 0) -> None:
        self.topic = topic
        self.clock = clock
        self.directory = directory
        self._lock = threading.Lock()
        self.received: dict[str, set[tuple[str, int]]] = {}
        self.opening = threading.Lock()
        """Held where exclusive producers are opened, so that their turns are in order."""
        self.turns = turns
        self.errors: dict[str, int] = {}
        self.last_error: PulsarException | None = None

    def journal(self, name: str) -> Journal:
        return Journal(self.directory / f"{name}.journal")

    def receive(self, subscription: str, producer: str, number: int) -> None:
        with self._lock:
            self.received.setdefault(subscription, set()).add((producer, number))

    def fail(self, error: PulsarException) -> None:
        with self._lock:
            name = type(error).__name__
            self.errors[name] = self.errors.get(name, 0) + 1
            self.last_error = error


def always_fails(number: int) -> bool:
    """Whether consumers that move failures fail a message of a producer whose plan says `fails`."""
    return number % FAILING_EACH == 3


class Working(threading.Thread):
    """A client that is opened again and again, until it is told to stop."""

    def __init__(
        self, name: str, notes: Notes, new_client: Callable[[], Client], seed: int, first_life: int = 0
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.notes = notes
        self.rng = random.Random(seed)
        self.error = ""
        self.stopped = threading.Event()
        self._new_client = new_client
        self.lives = first_life
        self.journal = notes.journal(f"{name}-{first_life}")

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                try:
                    self._live()
                except PulsarException as error:
                    self.notes.fail(error)
                    self.journal.write(ERROR, type(error).__name__)
                    self.stopped.wait(AGAIN_S)
                self.lives += 1
                self.journal = self.notes.journal(f"{self.name}-{self.lives}")
        except Exception:  # noqa: BLE001 - the round reports it
            self.error = traceback.format_exc()

    def _live(self) -> None:
        client = self._new_client()
        try:
            self.live(client)
        finally:
            with suppress(PulsarException):
                client.shutdown()

    def note(self, operation: Operation) -> None:
        note(self.journal, operation)

    def live(self, client: Client) -> None:
        """Work until an error, or the end."""
        raise NotImplementedError

    def end_of_life(self, life_s: float) -> float:
        return time.monotonic() + self.rng.expovariate(1 / life_s)


class Producing(Working):
    def __init__(
        self,
        name: str,
        plan: ProducerPlan,
        notes: Notes,
        client: Callable[[], Client],
        seed: int,
        first_life: int = 0,
    ) -> None:
        super().__init__(name, notes, client, seed, first_life)
        self.plan = plan
        self._seed = seed
        self._next = 0
        self._unconfirmed: set[int] = set()
        self._refused: set[int] = set()
        """Numbers that may not go again: later ones may be stored, and they would pass for stored too."""
        self._number_lock = threading.Lock()

    def resume(self, number: int, unconfirmed: set[int]) -> None:
        """Go on behind producers of this name in processes that died."""
        self._next = number
        self._unconfirmed = unconfirmed

    def live(self, client: Client) -> None:
        plan = self.plan
        tag = self.name if plan.keeps_name else f"{self.name}-{self.lives}"
        if plan.keeps_name:
            # An application that was restarted sends again from its last known place, or from before.
            with self._number_lock:
                first = min(self._unconfirmed, default=self._next)
            self._next = max(0, first - self.rng.randrange(10))
        else:
            self._next = 0
        producer = self._open(client, tag)
        end = self.end_of_life(plan.life_s)
        send = {"sync": self._send, "many": self._send_many}.get(plan.style, self._send_async)
        while not self.stopped.wait(self.rng.random() * plan.pause_ms / 500) and time.monotonic() < end:
            send(producer, tag)
        producer.flush()
        producer.close()

    def _open(self, client: Client, tag: str) -> Producer:
        plan = self.plan

        def create() -> Producer:
            return client.create_producer(
                self.notes.topic,
                tag,
                batching_enabled=plan.style == "async" and not plan.chunks,
                batching_max_publish_delay_ms=5,
                block_if_queue_full=True,
                max_pending_messages=200,
                send_timeout_millis=0 if plan.keeps_name else 10_000,
                chunking_enabled=plan.chunks,
                chunk_max_message_size=CHUNK_BYTES if plan.chunks else -1,
                access_mode=plan.access,
            )

        if plan.access == ProducerAccessMode.Shared:
            return create()
        with self.notes.opening:
            producer = create()
            self.notes.turns += 1
            self.note(ProducerOpened(self.notes.topic, tag, self.notes.turns))
            return producer

    def _message(self, tag: str) -> tuple[int, bytes, dict[str, Any]]:
        """The next message's number, bytes and further arguments; the same whenever it is sent again."""
        with self._number_lock:
            while self._next in self._refused:
                self._next += 1
        plan, number = self.plan, self._next
        self._next += 1
        rng = random.Random(self._seed << 24 | number)
        data = payload(tag, number, rng.randrange(plan.most_bytes))
        beside: dict[str, Any] = {}
        key = ""
        if plan.keys:
            key = beside["partition_key"] = f"k{rng.randrange(plan.keys)}"
        due_ms = 0
        if rng.random() < plan.delayed_share:
            due_ms = time.time_ns() // 1_000_000 + rng.randrange(plan.longest_delay_ms)
            beside["deliver_at"] = due_ms
        if plan.keeps_name:
            beside["sequence_id"] = number
        with self._number_lock:
            self._unconfirmed.add(number)
        fails = plan.fails and always_fails(number)
        self.note(SendInvoked(self.notes.topic, tag, number, key, digest_of(data), due_ms, fails))
        return number, data, beside

    def _confirm(self, tag: str, number: int, place: MessageId | None) -> None:
        known = place is not None and place.ledger_id() >= 0
        if _is_persistent(self.notes.topic):
            self.note(SendOk(self.notes.topic, tag, number, id_of(place) if known and place else None))
        with self._number_lock:
            self._unconfirmed.discard(number)

    def _send(self, producer: Producer, tag: str) -> None:
        number, data, beside = self._message(tag)
        try:
            place = producer.send(data, **beside)
        except PulsarException as error:
            self.note(SendUnknown(self.notes.topic, tag, number, type(error).__name__))
            raise
        self._confirm(tag, number, place)

    def _send_async(self, producer: Producer, tag: str) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            number, data, beside = self._message(tag)
            producer.send_async(data, self._callback(tag, number, self.journal), **beside)

    def _callback(self, tag: str, number: int, journal: Journal) -> Callable[[Any, MessageId], None]:
        def callback(result: Any, place: MessageId) -> None:
            if result == Result.Ok:
                self._confirm(tag, number, place)
            else:
                note(journal, SendUnknown(self.notes.topic, tag, number, str(result)))
                if result not in (Result.AlreadyClosed, Result.NotConnected):
                    with self._number_lock:
                        self._unconfirmed.discard(number)
                        if self.plan.keeps_name:
                            self._refused.add(number)

        return callback

    def _send_many(self, producer: Producer, tag: str) -> None:
        messages = [self._message(tag) for _ in range(self.rng.randrange(1, 20))]
        try:
            producer.send_many([data for _, data, _ in messages])
        except PulsarException as error:
            for number, _, _ in messages:
                self.note(SendUnknown(self.notes.topic, tag, number, type(error).__name__))
            raise
        for number, _, _ in messages:
            self._confirm(tag, number, None)


class Consuming(Working):
    def __init__(
        self,
        name: str,
        plan: ConsumerPlan,
        notes: Notes,
        client: Callable[[], Client],
        seed: int,
        first_life: int = 0,
    ) -> None:
        super().__init__(name, notes, client, seed, first_life)
        self.plan = plan
        self._seeks = first_life
        self.consumer: Consumer | None = None
        self.is_calm = False
        """No more seeks, failures without need and comings and goings: the round comes to its end."""
        self._places: list[MessageId] = []

    def live(self, client: Client) -> None:
        consumer = self.consumer = self.subscribe(client)
        end = self.end_of_life(self.plan.life_s)
        while not self.stopped.is_set() and (self.is_calm or time.monotonic() < end):
            try:
                message = consumer.receive(RECEIVE_MS)
            except Timeout:
                continue
            self._take(consumer, message)
        consumer.close()

    def subscribe(self, client: Client) -> Consumer:
        """A consumer of the plan."""
        plan = self.plan
        self.note(ConsumerOpening(self.notes.topic, plan.subscription))
        letters = ConsumerDeadLetterPolicy(plan.letters_after) if plan.letters_after else None
        return client.subscribe(
            self.notes.topic,
            plan.subscription,
            plan.kind,
            consumer_name=f"{self.name}-{self.lives}",
            initial_position=InitialPosition.Earliest,
            receiver_queue_size=plan.queue_size,
            ack_receipt_enabled=plan.answers != "grouped",
            negative_ack_redelivery_delay_ms=30,
            dead_letter_policy=letters,
            enable_retry=plan.retries,
            start_message_id_inclusive=True,
            max_pending_chunked_message=100,
        )

    def _take(self, consumer: Consumer, message: Message) -> None:
        plan, topic = self.plan, self.notes.topic
        wall_ms = self.notes.clock.highest_ms()
        data = message.data()
        producer, number = source_of(data)
        if not _is_persistent(topic):
            self.note(Heard(topic, plan.subscription, producer, number, digest_of(data)))
            return
        place = message.message_id()
        is_own = (
            TopicName.parse(message.topic_name()).partitioned_full == TopicName.parse(topic).partitioned_full
        )
        if is_own:
            self.note(
                Received(
                    topic,
                    plan.subscription,
                    id_of(place),
                    producer,
                    number,
                    message.partition_key(),
                    digest_of(data),
                    wall_ms,
                    message.redelivery_count(),
                )
            )
            self.notes.receive(plan.subscription, producer, number)
        self._answer(consumer, message, number, is_own=is_own)

    def _answer(self, consumer: Consumer, message: Message, number: int, *, is_own: bool) -> None:
        plan, topic = self.plan, self.notes.topic
        place = message.message_id()
        if plan.letters_after and always_fails(number):
            if plan.retries:
                consumer.reconsume_later(message, timedelta(milliseconds=self.rng.randrange(200)))
            else:
                consumer.negative_acknowledge(message)
            return
        if not self.is_calm and self.rng.random() < plan.nacked_share:
            consumer.negative_acknowledge(message)
            return
        if plan.answers == "cumulative":
            if self.is_calm or self.rng.random() < 0.15:
                consumer.acknowledge_cumulative(message)
                self.note(CumulativeOk(topic, plan.subscription, id_of(place), place.batch_size()))
        else:
            consumer.acknowledge(message)
            if plan.answers == "each" and is_own:
                self.note(AcknowledgeOk(topic, plan.subscription, id_of(place), place.batch_size()))
        self._places.append(place)
        if not self.is_calm and self.rng.random() < plan.seek_share:
            self._seek(consumer)

    def _seek(self, consumer: Consumer) -> None:
        """Go back to a message that was seen, or to the first one."""
        topic, subscription = self.notes.topic, self.plan.subscription
        self._seeks += 1
        place = self.rng.choice(self._places) if self.rng.random() < 0.8 else None
        target = None if place is None else id_of(place)
        self.note(SeekInvoked(topic, subscription, self._seeks, target))
        consumer.seek(MessageId.earliest if place is None else place)
        self.note(SeekOk(topic, subscription, self._seeks, target))


def _is_persistent(topic: str) -> bool:
    return not topic.startswith("non-persistent:")
