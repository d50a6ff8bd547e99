"""Deciding who gets which entry of one subscription: events in, grants out.

There is no I/O and no clock.

Life of a block: offered in the order of the log -> waiting -> granted to a consumer (pending) ->
acknowledged, or waiting again. The dispatcher's owner feeds it (`offer` while `blocks_wanted`), calls
`dispatch` after any event that may have made room or work, `expire` at the deadline of `returning`, and
flushes the cursor. Costs are per block and per range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pulsar_ray.dispatch.acknowledgments import Acknowledgments
from pulsar_ray.dispatch.blocks.block_intake import BlockIntake, ReadAhead, ReadBlocks
from pulsar_ray.dispatch.blocks.chunk_limits import mildest
from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Attachment, Consumer, ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.delayed_blocks import DelayedBlocks
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.dispatch.grant_maker import GrantMaker, RatedGrants, UnackedLimits
from pulsar_ray.dispatch.redelivery import (
    EMPTY_QUEUE,
    ConsumerQueue,
    NackItem,
    Redelivery,
    RedeliveryRequests,
)
from pulsar_ray.dispatch.returning_consumers import ReportedRows, ReturningConsumers
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_types.policy import GrantSource
from pulsar_ray.dispatch.subscription_types.subscription_type import SubscriptionType
from pulsar_ray.dispatch.suspects.blame import Blame, Crash
from pulsar_ray.errors import ConsumerBusy, CumulativeAcknowledgementNotAllowedError
from pulsar_ray.managed_ledger.cursor.managed_cursor import KnownConsumer, ManagedCursor
from pulsar_ray.managed_ledger.delayed.delayed_rows import RowKey
from pulsar_ray.model.message_id import EARLIEST, Position, after_seeks, seeks_of
from pulsar_ray.model.registrations import STRICT_PROPERTY
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.model.row_sets import EntryBits, RowSet


class Dispatcher:
    """The dispatcher core of one subscription on one partition, for one epoch of its owner."""

    def __init__(
        self,
        cursor: ManagedCursor,
        settings: DispatchSettings,
        *,
        epoch: int,
        now_ms: int,
        topic: str = "persistent://public/default/unnamed",
    ) -> None:
        self.topic = topic
        self.cursor = cursor
        self.settings = settings
        self.epoch = epoch
        self.generation = after_seeks(cursor.generation)
        """Rises with every seek and rewind: messages queued before are to be dropped."""
        self.reading_number = cursor.generation
        """Rises whenever reading starts over, as behind a seek; what was read before is ignored."""
        self.consumers: dict[int, Consumer] = {}
        self.blocks = DispatchBlocks(cursor.remember_suspects)
        self.returning = ReturningConsumers(cursor.consumers.values(), now_ms + settings.reattach_grace_ms)
        """Those from before a restart: `expire`, then `dispatch`, are due when their grace ends."""
        subscription = cursor.subscription
        self.delayed = DelayedBlocks(
            settings,
            can_wait=subscription.is_durable,
            strict=subscription.properties.get(STRICT_PROPERTY, ""),
        )
        self._acknowledgments = Acknowledgments(cursor, self.blocks)
        self.intake = BlockIntake(
            cursor, self.blocks, self.returning, self.consumers, self.delayed, self._acknowledgments
        )
        self._redelivery = Redelivery(cursor, self.blocks)
        self._blame = Blame(self.blocks, self._redelivery)
        self.type = SubscriptionType(settings, self.blocks)
        """The type of its consumers, with its policy and its slots of keys."""
        self._limits = UnackedLimits(settings, self.blocks, self.type, is_durable=subscription.is_durable)
        self.room = self._limits.room
        self._read_ahead = ReadAhead(settings, self.blocks, self.returning, self.consumers, self.type)
        self.blocks_wanted = self._read_ahead.messages_wanted
        self.due_wanted = self._read_ahead.due_wanted
        self._requests = RedeliveryRequests(
            self._redelivery, self.returning, self.consumers, self.type, self.blocks
        )
        limits = self._limits if subscription.is_durable else None
        self._granting = GrantMaker(cursor.counts, self.blocks, self.type, self.room, limits)
        self.rated = RatedGrants.of(settings, self._granting, None)
        """None unless no more than so much is delivered a second."""
        self.now_ms = now_ms

    # ---- consumers

    @property
    def is_blocked_on_unacked(self) -> bool:
        """Whether nothing is dispatched until half of the subscription's limit is acknowledged."""
        return self._limits.is_blocked

    @property
    def acknowledgments(self) -> Acknowledgments:
        """For what an administrator acknowledges."""
        return self._acknowledgments

    def must_wait(self, spec: ConsumerSpec, *, was_open: bool = False) -> bool:
        """Whether a consumer from before a restart may come back and keep this one out.

        Either they exclude each other, or there is one place left. One that `was_open` has a place of its
        own, however many there may be. `attach_consumer` would raise ConsumerBusy, or let in one too many;
        better ask again when `returning` has its deadline.
        """
        if spec.incarnation in self.consumers:
            return False
        limit = 0 if was_open else self.settings.max_consumers_per_subscription
        fill_up = self.returning.fill_up(spec.incarnation, len(self.consumers), limit)
        return fill_up or self.returning.keeps_out(spec)

    def attach_consumer(
        self,
        spec: ConsumerSpec,
        now_ms: int,
        *,
        epoch: int = 0,
        received: int = 0,
        held: Sequence[ReportedRows] = (),
        parts: Sequence[ReportedRows] = (),
        received_messages: int = 0,
        generation: int | None = None,
        credit: int = 0,
    ) -> Attachment:
        """Attach a consumer, or attach it again after its connection or the dispatcher was lost.

        If this dispatcher knows it, what came after number `received` of this `epoch` is sent again.
        Otherwise its pending messages are rebuilt from its report: `held`, of batches given to it whole,
        whose other messages it has acknowledged, and `parts`, of batches that others may have the rest of.
        Messages that others got meanwhile stay theirs, and `received_messages` is where its count of received
        messages, which credit refers to, stands. Rows that it held in a `generation` from before a seek are
        not its any more. The client repeats acks and nacks it cannot know to have arrived. A `credit` that
        comes along counts at once.

        Flush the cursor before answering. Raises ConsumerBusy (Exclusive, another type or mode),
        ConsumerAssignError.
        """
        self.now_ms = now_ms
        self.expire(now_ms)
        known = self.consumers.get(spec.incarnation)
        if known is not None:
            again = known.resume_after(received if epoch == self.epoch else 0)
            if credit:
                self.set_credit(spec.incarnation, credit, 0, 0)
            return Attachment(
                True, self.generation, [self._granting.grant_of(delivery) for delivery in again]
            )
        self._admit(spec)
        consumer = self.consumers[spec.incarnation] = Consumer(spec)
        consumer.granted = received_messages
        self._limit_chunks()
        self.type.policy.join(consumer)
        self.cursor.remember_consumer(KnownConsumer(spec.incarnation, spec.name, int(spec.consumer_type)))
        self.returning.came_back(spec.incarnation)
        if not self._precedes_seek(generation):
            self.intake.restore(consumer, held, parts)
        if credit:
            self.set_credit(spec.incarnation, credit, 0, 0)
        return Attachment(False, self.generation, [])

    def _admit(self, spec: ConsumerSpec) -> None:
        if self.returning.keeps_out(spec):
            raise ConsumerBusy(
                f"a consumer from before the restart may still come back and excludes {spec.name!r}"
            )
        if self.consumers:
            self.type.check(spec)
        else:
            must_read_again = self.type.become(spec)
            if self.delayed.become(heeds_delays=self.type.heeds_delays) or must_read_again:
                known = self.cursor.suspects
                self.blocks.clear()
                self.intake.seek(self.cursor.mark_delete.next())
                self.intake.suspect(known)
                self.reading_number += 1
                self.delayed.begin_again()
        self.type.policy.admit(spec, self.consumers.values())

    def remove_consumer(
        self, incarnation: int, how: ConsumerExit, *, handed_over: int | None = None
    ) -> Crash | None:
        """Remove a consumer for good; messages that it holds wait again.

        Returns what is known of its crash, if it crashed.

        After a crash messages that the application had been given are suspect. `handed_over` says how many
        messages had left the consumer's queue in the end, if that is known; then reports do not count.
        """
        consumer = self.consumers.pop(incarnation, None)
        if consumer is None:
            return None
        self.type.policy.leave(consumer)
        self._limit_chunks()
        crash = None
        if how is ConsumerExit.CRASHED and self.cursor.subscription.is_durable:
            crash = self._blame.crashed(consumer, handed_over)
        else:
            self._redelivery.give_up(consumer)
        self.returning.forget(incarnation)
        self.cursor.forget_consumer(incarnation)
        return crash

    def _limit_chunks(self) -> None:
        self.blocks.chunks.limits = mildest(c.spec.chunk_limits for c in self.consumers.values())

    def expire(self, now_ms: int) -> None:
        """Wait no longer for consumers known from before a restart, once their grace is over."""
        for incarnation in self.returning.stop_waiting(now_ms):
            self.cursor.forget_consumer(incarnation)

    def await_no_more(self, incarnation: int) -> None:
        """Wait no longer for a consumer known from before a restart, for it was closed."""
        if self.returning.came_back(incarnation):
            self.cursor.forget_consumer(incarnation)

    # ---- reading and granting

    def passed_over(self) -> Position | None:
        """The first unacknowledged entry, if it was read past and is nowhere.

        None while anything is outstanding; also where it may be delayed, a chunk, or claimed by a consumer.
        """
        if self.blocks.index or self.blocks.chunks or self.returning.claims:
            return None
        if self.delayed.left_through is not None:
            return None
        first = self.cursor.unacknowledged(0)
        return first if first is not None and first < self.intake.read_position else None

    def read_again(self, position: Position) -> None:
        """Read once more from an entry on that was passed over; nothing is outstanding."""
        self.intake.seek(position)
        self.reading_number += 1

    def offer(self, read: ReadBlocks, reading_number: int) -> list[DropQueue]:
        """Take in durable blocks in the order of the log, from the read position on.

        They come with their slots if there is a `slotting`.
        """
        if reading_number != self.reading_number:
            return []
        self.intake.take_in(read, self.now_ms)
        if not self._requests.deferred:
            return []
        return [self._rewound(incarnation) for incarnation in self._requests.retry()]

    def take_due(self, read: ReadBlocks, rows: Sequence[RowSet], last: RowKey, reading_number: int) -> None:
        """Take in rows that the tracker hands over, everything up to the key `last`.

        Repeats are harmless. They come with their slots if there is a `slotting`.
        """
        lacks_slots = self.type.slotting is not None and read.slots is None and bool(read.refs)
        if reading_number == self.reading_number and not lacks_slots:
            self.intake.take_due(read, rows)
            self.delayed.taken = max(self.delayed.taken, last)

    def set_credit(self, incarnation: int, credit: int, received: int, handed_over: int) -> None:
        """A consumer's report: absolute credit, last number received, messages that have left its queue."""
        consumer = self.consumers.get(incarnation)
        if consumer is not None:
            consumer.set_credit(credit, received, handed_over)

    def on_trial(self) -> list[int]:
        """The ids of consumers that have suspects."""
        return [i for i, consumer in self.consumers.items() if consumer.trial.deliveries]

    def has_handed_over(self, incarnation: int, messages: int) -> None:
        """So many messages have left a consumer's queue, as was seen between two reports."""
        consumer = self.consumers[incarnation]
        consumer.handed_over = max(consumer.handed_over, messages)

    def elect(self, now_ms: int) -> list[DropQueue]:
        """On Failover: elect the active consumer if others came or went; call before `dispatch`.

        If it is another one than before, everything unacknowledged comes to it in order. If it is not, what
        the others say to hold from before a restart or a long silence comes to it as well.
        """
        policy = self.type.electing
        if policy is None:
            return []
        if self.returning.is_waiting(now_ms):
            return []
        former, active = policy.elected, policy.elect(self.topic)
        holding = [c for i, c in self.consumers.items() if c.deliveries or self.returning.has_claims(i)]
        is_first = former is None and self.generation == after_seeks(self.cursor.generation)
        if (former is active or is_first) and all(consumer is active for consumer in holding):
            return []
        for consumer in holding:
            self._redelivery.give_up(consumer)
            self.returning.forget(consumer.spec.incarnation)
        self.generation += 1
        return [self._drop_queue(consumer) for consumer in self.consumers.values()]

    def dispatch(self, now_ms: int) -> list[Grant]:
        """Grant what can be granted now.

        Nothing is, while consumers known from before a restart are awaited.
        """
        self.now_ms = now_ms
        if self.returning.awaited and self.returning.is_waiting(now_ms):
            return []
        if self.type.keyed is not None and self.returning.claims and self.blocks_wanted() > 0:
            # A consumer that reports a message keeps its key: first find out which one that is.
            return []
        if self.blocks.suspects.groups:
            self.blocks.suspects.sweep()
        source: GrantSource = self._granting
        if self.rated is not None:
            source = self.rated
        source.now_ms = now_ms
        return self.type.policy.dispatch(source)

    def take_properties(self, properties: dict[str, str]) -> None:
        """Let other properties of the subscription hold from now on."""
        self.cursor.take_properties(properties)
        self.delayed.strict = properties.get(STRICT_PROPERTY, "")

    def settings_changed(self) -> None:
        """Hold messages back from now on only where the settings of now do."""
        if self.type.policy.limits_unacked:
            self._limits.settings_changed(self.consumers.values())
        self.rated = RatedGrants.of(self.settings, self._granting, self.rated)
        self.delayed.settings_changed()

    def throttled_ms(self, now_ms: int) -> int:
        """How long the dispatch rate lets nothing go; then `dispatch` is due."""
        return 0 if self.rated is None else self.rated.limit.wait_ms(now_ms)

    # ---- what keeps messages from going out

    @property
    def awaits_consumers(self) -> bool:
        """Whether nothing is dispatched because consumers from before a restart may come back."""
        return self.returning.is_waiting(self.now_ms)

    @property
    def is_full_of_unacked(self) -> bool:
        """Whether the subscription has as many unacknowledged messages as it may."""
        limit = self.settings.max_unacked_messages_per_subscription
        return self.type.policy.limits_unacked and 0 < limit <= self.blocks.unacked_messages

    @property
    def has_unread(self) -> bool:
        """Whether durable entries were not offered yet."""
        return self.intake.read_position <= self.cursor.ledgers.end

    def has_more(self, last: Position) -> bool | None:
        """Whether anything up to `last` is still to be delivered; None while not known."""
        waits = self.blocks.waiting_messages > 0 or bool(self.blocks.suspects.waiting)
        return waits or self.intake.has_unread(last)

    def is_under_way(self, incarnation: int, received: int) -> bool:
        """Whether a consumer is still to get something granted behind delivery `received`."""
        consumer = self.consumers.get(incarnation)
        return consumer is not None and any(
            delivery.number > received and delivery.rows for delivery in consumer.unconfirmed
        )

    def why_no_room(self, consumer: Consumer) -> str | None:
        """Why a consumer may get nothing now, None if it may."""
        if consumer.permits <= 0:
            return "its receiver queue is full"
        if consumer.trial.deliveries and not consumer.trial.is_over:
            return "it works on messages of which one may have ended another consumer"
        if self._limits.is_full_of_pending_acks:
            return (
                "max_pending_acks_per_subscription is reached: "
                f"{self.blocks.pending_acks} entries are unacknowledged"
            )
        if self.room(consumer) <= 0 and not self.is_full_of_unacked:
            return f"max_unacked_messages_per_consumer is reached: it holds {consumer.unacked} messages"
        return None

    # ---- acknowledging

    def acknowledge(
        self,
        incarnation: int,
        ranges: Iterable[tuple[int, int, int]] = (),
        batch: Iterable[tuple[int, int, RowRanges]] = (),
        cumulative: tuple[int, int, int] | None = None,
        generation: int | None = None,
        entry_bits: Iterable[EntryBits] = (),
        moved: Iterable[tuple[int, int, RowRanges]] = (),
    ) -> int:
        """Acknowledge entries, messages of batches, and everything up to a message.

        `ranges` are (ledger, first, last), `entry_bits` scattered entries, `batch` and `moved`
        (ledger, entry, rows), of which those moved never come again,
        `cumulative` (ledger, entry, row of a batch or -1). Returns what must be durable before a receipt.

        Idempotent; any consumer may acknowledge any message, also one that has left. Acknowledgments in a
        `generation` from before a seek change nothing: the consumer has to see those messages again. Raises
        CumulativeAcknowledgementNotAllowedError for `cumulative` on Shared, with nothing acknowledged.
        """
        if cumulative is not None and not self.type.policy.is_ordered:
            raise CumulativeAcknowledgementNotAllowedError(
                f"{self.type.kind!s} subscriptions know no cumulative acknowledgment"
            )
        if self._precedes_seek(generation):
            return self.cursor.version
        consumer = self.consumers.get(incarnation)
        is_durable = (
            consumer is not None
            and consumer.spec.batch_index_ack
            and self.settings.acknowledgment_at_batch_index_level_enabled
        )
        self._acknowledgments.acknowledge_ranges(ranges)
        for bits in entry_bits:
            self._acknowledgments.acknowledge_bits(bits)
        for ledger_id, entry_id, rows in batch:
            self._acknowledgments.acknowledge_batch(ledger_id, entry_id, rows, is_durable)
        for ledger_id, entry_id, rows in moved:
            self._acknowledgments.acknowledge_batch(ledger_id, entry_id, rows, is_durable=True)
        if cumulative is not None:
            ledger_id, entry_id, row = cumulative
            self._acknowledgments.acknowledge_up_to(Position(ledger_id, entry_id), row, is_durable)
        return self.cursor.version

    def negative_acknowledge(
        self, incarnation: int, items: Iterable[NackItem], queue: ConsumerQueue = EMPTY_QUEUE
    ) -> list[DropQueue]:
        """Let messages come again now.

        On an ordered subscription everything unacknowledged from the oldest of them on comes again, in
        order: the consumer drops its queue first.
        """
        has_gone_back = self._requests.negative_acknowledge(incarnation, items, queue)
        return [self._rewound(incarnation)] if has_gone_back else []

    def cannot_read(self, incarnation: int, place: tuple[int, int], generation: int | None = None) -> None:
        """Count a block for one message: its consumer cannot decode it.

        `place` is its (ledger id, first entry id).
        """
        if not self._precedes_seek(generation):
            self._requests.cannot_read(incarnation, place)

    def _rewound(self, incarnation: int) -> DropQueue:
        self.generation += 1
        return self._drop_queue(self.consumers[incarnation])

    def _drop_queue(self, consumer: Consumer) -> DropQueue:
        return DropQueue(
            consumer.spec.incarnation, self.generation, consumer.next_number - 1, consumer.granted
        )

    def redeliver_unacknowledged(
        self, incarnation: int, through: int, generation: int | None = None, handed_over: int | None = None
    ) -> list[DropQueue]:
        """Let everything come again that the consumer got up to number `through`.

        On an ordered subscription messages on their way come again too, unless the consumer asked in an
        earlier `generation` and has nothing from before: then it was done. Messages that the application had
        been given, by its count `handed_over` or else the last report, count as failed.
        """
        is_repeat = generation is not None and generation != self.generation
        has_gone_back = self._requests.redeliver(incarnation, through, handed_over, is_repeat=is_repeat)
        return [self._rewound(incarnation)] if has_gone_back else []

    def seek(self, position: Position) -> list[DropQueue]:
        """Start over with the entry at `position`, backwards or forwards; everything pending is forgotten.

        `position` must be valid and held by the partition. Flush the cursor before answering.
        """
        self.blocks.clear()
        self.returning.claims.clear()
        self._requests.clear()
        before = Position(position.ledger_id, position.entry_id - 1) if position > EARLIEST else EARLIEST
        self.cursor.reset(before)
        self.reading_number += 1
        self.intake.seek(position)
        self.delayed.begin_again()
        self.generation = after_seeks(self.cursor.generation)
        start = None if self.cursor.subscription.is_durable else self.cursor.mark_delete
        return [
            self._drop_queue(consumer)._replace(is_seek=True, start=start)
            for consumer in self.consumers.values()
        ]

    def _precedes_seek(self, generation: int | None) -> bool:
        if generation is None or generation == self.generation:
            return False
        return seeks_of(generation) < self.cursor.generation
