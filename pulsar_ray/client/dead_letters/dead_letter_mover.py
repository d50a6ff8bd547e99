"""The thread that moves messages that failed too often to the dead letter topic."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from pulsar_ray.client.acks.unacked_rows import HeldBlock
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.dead_letters.letter_producers import LetterProducers
from pulsar_ray.client.dead_letters.letters import (
    LetterColumns,
    LetterTopics,
    joined_columns,
    letter_columns,
    origin_id,
    unreadable_letter,
)
from pulsar_ray.client.dead_letters.sent_copies import SentCopies, send_copies
from pulsar_ray.client.endpoint.ending import notify_of_forks
from pulsar_ray.client.options.policies import MultiplierRedeliveryBackoff
from pulsar_ray.client.received.message import BlockRows, ranges_of, rows_in
from pulsar_ray.client.received.receiver_queue import QueuedDelivery
from pulsar_ray.client.schemas.registration import Writer, writer_of
from pulsar_ray.errors import AlreadyClosed, CryptoError, ForkedClient, PulsarException
from pulsar_ray.model.message_id import entry_at

logger = logging.getLogger(__name__)


REPORT_S = 1.0
"""Between two reports."""


class MoveReport:
    """Counts moved messages of each partition, and keeps the reason while they cannot be moved."""

    def __init__(self) -> None:
        # Partitions whose topics are deleted are forgotten with them.
        self._moved: WeakKeyDictionary[PartitionConsumer, int] = WeakKeyDictionary()
        self._errors: WeakKeyDictionary[PartitionConsumer, str] = WeakKeyDictionary()
        self._changed: set[PartitionConsumer] = set()
        self._sent_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether something has not been reported yet."""
        return bool(self._changed)

    def moved(self, partition: PartitionConsumer, count: int) -> None:
        """Count messages that were moved."""
        self._moved[partition] = self._moved.get(partition, 0) + count
        self._errors.pop(partition, None)
        self._changed.add(partition)

    def failed(self, partitions: Iterable[PartitionConsumer], reason: str) -> bool:
        """Keep the reason why messages were not moved; False if it was known.

        Each failure reports the reason again, for the report of the one before may have been lost.
        """
        is_new = False
        for partition in partitions:
            is_new |= self._errors.get(partition) != reason
            self._errors[partition] = reason
            self._changed.add(partition)
        return is_new

    def send_if_due(self) -> None:
        """Report what has changed, unless a report was sent just now.

        A lost report is made good by the next one: the numbers are absolute.
        """
        if self._changed and time.monotonic() - self._sent_s >= REPORT_S:
            self.send()

    def send(self) -> None:
        """Report what has changed."""
        self._sent_s = time.monotonic()
        changed, self._changed = self._changed, set()
        for partition in changed:
            if not partition.session.is_gone():
                partition.report_moves(self._moved.get(partition, 0), self._errors.get(partition, ""))


LOOK_S = 0.1
"""Between two looks at messages that wait behind others in the queue."""
TOO_LARGE_S = 10.0
"""Before a message is tried again that is too large for the dead letter topic."""
_BACKOFF = MultiplierRedeliveryBackoff(100, 5_000, 2.0)
"""Before a dead letter topic is tried again that refused."""
IDLE_S = 60.0
"""The thread ends when there was nothing to move for so long."""


class _Taken(NamedTuple):
    """Rows of a delivery that are being moved."""

    delivery: QueuedDelivery
    partition: PartitionConsumer
    part: BlockRows
    unreadable: HeldBlock | None = None
    """The block, if it could not be decoded: `part` is the letter made of it."""

    @property
    def is_current(self) -> bool:
        """Whether no seek has happened since, after which the rows come again by themselves."""
        return self.delivery.generation == self.delivery.source.generation


class _Refusals(NamedTuple):
    """Failed moves of a topic's messages in a row, and when to try again."""

    failures: int
    again_s: float


class DeadLetterMover:
    """Copies messages, and acknowledges them once their copies are durable.

    So a crash in between leaves a message in both topics, never in none. Messages that wait while others are
    copied go together in one call. Those that cannot be copied come again, the later the more often copying
    those of their topic has failed in a row; other topics' are not concerned. The thread begins with the
    first message, and ends when there was none for a minute.
    """

    def __init__(self, core: ConsumerCore, topics: LetterTopics, producers: LetterProducers) -> None:
        self._core = core
        self._topics = topics
        self._producers = producers
        self._report = MoveReport()
        self._refusals: dict[str, _Refusals] = {}
        """By the topic that messages come from, while they cannot be moved."""
        self._start_empty()
        notify_of_forks(self)
        core.move_by(self)

    def _start_empty(self) -> None:
        self._wake = threading.Condition()
        self._waiting: list[QueuedDelivery] = []
        self._thread: threading.Thread | None = None
        self._is_to_look = False
        self._is_ended = False

    def forked(self, _error: ForkedClient) -> None:
        """Move nothing in a forked child: what was delivered is the parent's."""
        self._start_empty()
        self._is_ended = True
        self._producers.forked()

    def take(self, delivery: QueuedDelivery) -> None:
        """Begin to move a delivery. Called with the consumer's lock held."""
        delivery.source.begin_move(delivery)
        with self._wake:
            self._waiting.append(delivery)
        self.look()

    def look(self) -> None:
        """Look for deliveries to move, which may wait behind others.

        Called with the consumer's lock held.
        """
        with self._wake:
            self._is_to_look = True
            self._wake.notify_all()
            if self._thread is None and not self._is_ended:
                name = f"pulsar-ray-dead-letters-{self._core.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Begin no more; messages that were not copied stay unacknowledged."""
        with self._wake:
            self._is_ended = True
            self._wake.notify_all()

    def close(self, deadline: float) -> None:
        """End, and wait for what is being copied."""
        self.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
        if thread is None or not thread.is_alive():
            self._report.send()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._move(batch)
            except Exception:
                # The thread goes on, and the messages stay where they are.
                logger.exception("messages that failed too often could not be moved")
            for delivery in batch:
                delivery.source.end_move(delivery)
            self._report.send_if_due()

    def _next(self) -> list[QueuedDelivery] | None:
        """The deliveries that wait to be moved; none after a while, None at the end."""
        is_more_behind = self._core.leave_to_mover()
        with self._wake:
            wait_s = LOOK_S if is_more_behind else REPORT_S if self._report.is_due else IDLE_S
            has_come = self._wake.wait_for(
                lambda: self._is_ended or self._is_to_look or bool(self._waiting), wait_s
            )
            self._is_to_look = False
            batch, self._waiting = self._waiting, []
            if self._is_ended:
                return None
            if has_come or wait_s < IDLE_S:
                return batch
            self._thread = None
            return None

    # --- moving -----------------------------------------------------------------------------------

    def _move(self, batch: list[QueuedDelivery]) -> None:
        by_source: dict[str, list[_Taken]] = {}
        for delivery in batch:
            for source, one in self._rows_of(delivery):
                by_source.setdefault(source, []).append(one)
        # A topic that refused last time may take its time to do so again: the others' letters go first.
        for source, taken in sorted(by_source.items(), key=lambda item: item[0] in self._refusals):
            refused = self._refusals.get(source)
            wait_s = 0.0 if refused is None else refused.again_s - time.monotonic()
            if wait_s > 0:
                self._have_delivered_again(taken, wait_s)
            elif not self._is_ended:
                self._copy(source, taken)

    def _rows_of(self, delivery: QueuedDelivery) -> list[tuple[str, _Taken]]:
        """The rows to be moved, each with the topic that it belongs to."""
        core, source = self._core, delivery.source
        try:
            block = source.decode(delivery)
            partition = core.partitions.of(block.topic_name, block.partition)
        except PulsarException as error:
            return [] if source.pass_deleted(delivery, error) else self._as_stored(delivery, error)
        with core.lock:
            rows = source.outstanding_rows(delivery, block)
        parts = self._topics.rows_by_source(block, rows_in(rows)) if rows else {}
        return [(real, _Taken(delivery, partition, part)) for real, part in parts.items()]

    def _as_stored(self, delivery: QueuedDelivery, error: PulsarException) -> list[tuple[str, _Taken]]:
        """A block that cannot be decoded, as one letter with what is stored.

        One that cannot be decrypted stays where it is: somebody may have the key later.
        """
        unreadable = delivery.source.unreadable
        if unreadable is not None and isinstance(error, CryptoError):
            unreadable.met(delivery, error)
            return []
        if unreadable is None or not unreadable.hold(delivery):
            return []
        held = unreadable.at(*delivery.key)
        try:
            data = unreadable.stored_bytes(delivery)
            partition = self._core.partitions.of(unreadable.topic, unreadable.partition)
        except PulsarException as reading:
            logger.warning("a message that failed too often cannot be moved: %s; %s", error, reading)
            return []
        if held is None:
            return []
        letter = unreadable_letter(unreadable.topic, held, unreadable.partition, data, str(error))
        real = self._topics.source_of(unreadable.topic, {})
        return [(real, _Taken(delivery, partition, BlockRows(letter, range(1)), held))]

    def _copy(self, source: str, taken: list[_Taken]) -> None:
        """Copy rows, those of each version of a schema together."""
        by_writer: dict[Writer, list[_Taken]] = {}
        for one in taken:
            by_writer.setdefault(writer_of(one.part.block), []).append(one)
        for writer, of_writer in by_writer.items():
            self._copy_of(writer, source, of_writer)

    def _copy_of(self, writer: Writer, source: str, taken: list[_Taken]) -> None:
        """Copy rows, and acknowledge those whose copies are durable."""
        try:
            columns = joined_columns([self._copies(source, one) for one in taken])
            with self._producers.lent(source, is_dead=True, writer=writer) as producer:
                sent = send_copies(producer, columns)
        except Exception as error:  # noqa: BLE001 - a customizer may raise anything
            sent = SentCopies(0, {}, error)
        went, too_big, left = _divided(taken, sent)
        if went:
            self._acknowledge(source, went)
        if too_big:
            self._complain(source, too_big, next(iter(sent.too_big.values())))
            self._have_delivered_again(too_big, TOO_LARGE_S)
        if left and sent.error is not None:
            self._refused(source, left, sent.error)

    def _copies(self, source: str, taken: _Taken) -> LetterColumns:
        is_letter = taken.unreadable is not None or self._topics.are_letters(taken.part.block.topic_name)
        return letter_columns(*taken.part, source, are_letters=is_letter)

    def _acknowledge(self, source: str, taken: list[_Taken]) -> None:
        with self._core.lock:
            for one in taken:
                if one.is_current and one.unreadable is not None:
                    one.partition.unreadable.add_ack(one.unreadable)
                elif one.is_current:
                    one.partition.ack_sender.acks.add_moved(*one.part)
                self._report.moved(one.partition, len(one.part.rows))
        for partition in {one.partition for one in taken}:
            if partition.session.is_abandoned:
                partition.ack_sender.forget()
            else:
                partition.ack_sender.flush()
        if self._refusals.pop(source, None) is not None:
            logger.info("messages of %s are moved to the dead letter topic again", source)

    def _refused(self, source: str, taken: list[_Taken], error: Exception) -> None:
        if self._is_ended and isinstance(error, AlreadyClosed):
            return
        known = self._refusals.get(source)
        failures = 0 if known is None else known.failures
        wait_s = _BACKOFF.next(failures) / 1000
        self._refusals[source] = _Refusals(failures + 1, time.monotonic() + wait_s)
        self._complain(source, taken, error)
        self._have_delivered_again(taken, wait_s)

    def _complain(self, source: str, taken: list[_Taken], error: Exception) -> None:
        try:
            dead_letter_topic = self._topics.dead_letter_topic(source)
        except PulsarException:
            dead_letter_topic = "a dead letter topic"
        reason = f"{dead_letter_topic}: {error}"
        if self._report.failed({one.partition for one in taken}, reason):
            first = taken[0].part
            logger.warning(
                "messages of %s that failed too often stay there and are tried again, for they cannot be "
                "moved to %s (the first of %d: %s)",
                source,
                reason,
                sum(len(one.part.rows) for one in taken),
                origin_id(first.block, first.rows[0]),
                exc_info=not isinstance(error, PulsarException),
            )

    def _have_delivered_again(self, taken: list[_Taken], wait_s: float) -> None:
        """Have rows come again when copying is to be tried again."""
        now_ms, delay_ms = time.monotonic_ns() // 1_000_000, int(wait_s * 1000)
        with self._core.lock:
            for one in taken:
                if one.is_current:
                    _nack(one, now_ms, delay_ms)
        for partition in {one.partition for one in taken}:
            partition.ack_sender.nacks_added()


def _divided(taken: list[_Taken], sent: SentCopies) -> tuple[list[_Taken], list[_Taken], list[_Taken]]:
    """The rows whose copies are durable, the too large ones, and those not sent."""
    if sent.error is None and not sent.too_big:
        return taken, [], []
    groups: tuple[list[_Taken], list[_Taken], list[_Taken]] = ([], [], [])
    start = 0
    for one in taken:
        rows: tuple[list[int], list[int], list[int]] = ([], [], [])
        for at, row in enumerate(one.part.rows, start):
            rows[1 if at in sent.too_big else 0 if at < sent.end else 2].append(row)
        start += len(one.part.rows)
        for group, chosen in zip(groups, rows, strict=True):
            if chosen:
                group.append(one._replace(part=BlockRows(one.part.block, chosen)))
    return groups


def _nack(taken: _Taken, now_ms: int, delay_ms: int) -> None:
    block, rows = taken.part
    if taken.unreadable is not None:
        taken.partition.unreadable.add_nack(taken.unreadable, now_ms, delay_ms)
        return
    add, count = taken.partition.ack_sender.nacks.add, block.redelivery_count
    if block.is_batch:
        add(block.ledger_id, block.first_entry_id, count, now_ms, ranges_of(rows), delay_ms)
        return
    for row in rows:
        add(block.ledger_id, entry_at(block.first_entry_id, row), count, now_ms, (), delay_ms)
