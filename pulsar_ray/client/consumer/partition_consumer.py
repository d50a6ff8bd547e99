"""One consumer's side of one partition: credit, deliveries, and what makes deliveries void.

The consumer above shares its lock with all its partitions: what arrives here on the I/O thread and what the
application does meet under it, for moments.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pulsar_ray.client.consumer.consumer_credit import ConsumerCredit
from pulsar_ray.client.consumer.dispatcher_session import DispatcherSession
from pulsar_ray.client.consumer.start_position import StartPosition
from pulsar_ray.client.endpoint.withdrawn import Withdrawn
from pulsar_ray.client.received import segment_files
from pulsar_ray.client.received.queued_delivery import BlockDecoder, QueuedDelivery
from pulsar_ray.client.received.skipped_rows import SkippedRows
from pulsar_ray.errors import ForkedClient, PulsarException, WrongNode
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.model import row_sets
from pulsar_ray.model.enums import ConsumerType, SubscriptionMode
from pulsar_ray.model.generation import seeks_of
from pulsar_ray.model.row_sets import RowSet
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import (
    ConsumerOpened,
    Deliver,
    OpenConsumer,
    RedeliverUnacknowledged,
    Reset,
    encode_request,
)
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute

if TYPE_CHECKING:
    from pulsar_ray.client.consumer.consumer_core import ConsumerCore

ORDERED_TYPES = (ConsumerType.Exclusive, ConsumerType.Failover)


class PartitionConsumer(DispatcherSession):
    """An endpoint on the link to one partition's dispatcher."""

    def __init__(self, core: ConsumerCore, link: ActorLink, consumer_id: int, route: PartitionRoute) -> None:
        super().__init__(link, consumer_id, core.options, core.lock)
        self._core = core
        self.route = route
        self._incarnation = secrets.randbits(63) | 1
        self._epoch = -1
        self._received = 0
        self.consumed = 0
        self.credit = ConsumerCredit(consumer_id)
        self.decode = BlockDecoder(core.files, route, core.options.schema).decode
        self.skipped = SkippedRows()
        self._awaits_reset = False
        self._joined = 0
        self._is_active: bool | None = None
        self._reads_files = False
        # The segment that was delivered from last, and its path.
        self._segment = (-1, -1)
        self._path = ""

    # --- opening ----------------------------------------------------------------------------------

    def _open_request(self, request_id: int) -> OpenConsumer:
        options = self._core.options
        attached = self.link.attached
        assert attached is not None
        self._reads_files = segment_files.can_read(attached.reach)
        with self._core.lock:
            return OpenConsumer(
                request_id,
                self.consumer_id,
                self._core.name,
                self._incarnation,
                int(options.consumer_type),
                int(options.priority_level),  # it may be a bool
                options.batch_index_ack_enabled,
                self._reads_files,
                self._epoch,
                self._received,
                self.held.declared(),
                self.start,
                self._core.subscription,
                self.consumed + self._core.queue.messages_of(self),
                self._joined,
                self._core.is_multi_topic,
                options.key_shared,
                generation=self.generation,
                properties=options.properties,
            )

    def _opened(self, opened: ConsumerOpened, attached: AttachReply | None) -> None:
        if self.is_abandoned:
            return
        with self._core.lock:
            self._attached = attached
            self._segment = (-1, -1)
            self._joined = self._joined or opened.epoch
            is_sought = seeks_of(opened.generation) > seeks_of(self.generation)
            if is_sought or (self._received == 0 and self._epoch < 0):
                # "latest" is this from now on, whatever is published while the dispatcher is away.
                self._start_behind(opened.start)
            if not opened.resumed:
                self._epoch = opened.epoch
                self._received = 0
                self._awaits_reset = False
                if not is_sought:
                    # Of another dispatcher: what came again before it does not count on from there.
                    self.generation = opened.generation
                    self.skipped.numbered_anew(opened.generation)
            self._drop_older(opened.generation)
            self._is_open = True
            self.credit.unsay()
        self._end_forgotten()
        if self._core.options.consumer_type == ConsumerType.Exclusive:
            self._became(True)
        # Before any credit: a dispatcher that has not heard of them must not deliver these messages again.
        self._statements.send_all()
        self.flush_acks()
        self.send_credit()

    def _end(self, error: PulsarException) -> None:
        self._core.partition_failed(self, error)

    # --- credit -----------------------------------------------------------------------------------

    def send_credit(self, *, always: bool = False) -> None:
        """Tell the dispatcher how much the queue takes and has taken, if that changed enough to matter."""
        with self._core.lock:
            if not self._is_open:
                return
            report = self.credit.due_report(self._core.window, self.consumed, self._received, always=always)
        if report is not None:
            self.link.send(encode_request(report))

    def credit_beside(self) -> Sequence[Buffer]:
        """Called with the lock held: what `send_credit` would say soon."""
        report = self.credit.early_report(self._core.window, self.consumed, self._received)
        return () if report is None else encode_request(report)

    # --- deliveries -------------------------------------------------------------------------------

    def on_request(self, request: Any, body: memoryview) -> None:
        """A delivery, or the order to drop what is queued."""
        if type(request) is Deliver:
            self._delivered(request, body)
        elif isinstance(request, Reset):
            self._reset(request)

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Dispatchers send no receipts."""

    def _delivered(self, request: Deliver, body: memoryview) -> None:
        granted: list[QueuedDelivery] = []
        generation = request.generation
        with self._core.lock:
            if request.epoch < self._epoch or generation < self.generation or not self._is_open:
                # Until it is open again numbers may have holes; what a carrier lost comes after that.
                return
            if generation > self.generation:
                self._drop_older(generation)
            offset = 0
            for number, grant in request.grants:
                ledger_id, segment, at, length, first, entries, rows, count, messages = grant
                row_set = row_sets.from_wire(rows)
                data = None
                if body:
                    data = body[offset : offset + length]
                    offset += length
                if number <= self._received:
                    continue
                self._received = number
                if self._awaits_reset:
                    self.consumed += row_set.bit_count()
                    continue
                self.held.add(ledger_id, first, entries, row_set, messages)
                if self.start is not None:
                    # A non-durable cursor dies with its dispatcher: the next one goes on behind what arrived.
                    last = first + row_set.bit_length() - 1 if entries > 1 else first
                    self._start_behind([ledger_id, last])
                if (ledger_id, segment) != self._segment:
                    self._path = self._segment_path(ledger_id, segment)
                    self._segment = (ledger_id, segment)
                granted.append(
                    QueuedDelivery(
                        self, generation, ledger_id, self._path, at, length, first, row_set, count, data
                    )
                )
            if granted:
                self._core.arrived(granted)
        self._end_forgotten()
        self._core.serve_waiting()

    def _segment_path(self, ledger_id: int, segment_index: int) -> str:
        attached = self.link.attached
        assert attached is not None
        return f"{attached.directory}/{segment_name(ledger_id, segment_index)}"

    def _start_behind(self, position: list[int] | None) -> None:
        if position is not None:
            self.start = {"target": position, "inclusive": False}

    def _drop_older(self, generation: int) -> None:
        """Called with the lock held: what is queued from before a seek or rewind comes again by itself.

        So does what was acknowledged before a seek, but nothing that was after it: only here they are told
        apart. Call `_end_forgotten` afterwards.
        """
        if generation > self.generation:
            if seeks_of(generation) > seeks_of(self.generation):
                self._forget()
                self.skipped.end()
            self.generation = generation
            self._awaits_reset = False
            self._drop_queue()

    def _reset(self, request: Reset) -> None:
        with self._core.lock:
            is_late = request.generation < self.generation
            self._drop_older(request.generation)
            if not is_late and request.granted >= 0:
                self._received = max(self._received, request.last_number)
                self.consumed = max(self.consumed, request.granted)
            if not is_late and request.is_active is False:
                self._drop_queue()
            if not is_late and request.is_seek:
                self._start_behind(request.start)
        self._end_forgotten()
        if not is_late and request.is_active is not None:
            self._became(request.is_active)
        self.send_credit()

    def _became(self, is_active: bool) -> None:
        if is_active is not self._is_active:
            self._is_active = is_active
            self._core.activity_changed(is_active, self.route.partition)

    def _drop_queue(self) -> None:
        self._core.queue.take_all(self)
        self.held.clear()

    def _give_up_queue(self) -> None:
        for ledger_id, first_entry_id, rows in self._core.queue.take_all(self):
            self.held.remove_rows(ledger_id, first_entry_id, rows)

    def outstanding_rows(self, granted: QueuedDelivery, batch_size: int) -> RowSet:
        """Called with the lock held: what of a batch is to be handed out.

        Rows that were acknowledged are not, nor those that a seek into the batch leaves out.
        """
        rows, ledger_id, entry_id = granted.rows, granted.ledger_id, granted.first_entry_id
        if skipped := self.skipped.of((ledger_id, entry_id), batch_size, granted.generation):
            self.acks.add_rows(ledger_id, entry_id, skipped, batch_size)
            rows &= ~row_sets.of_ranges(skipped)
        return self.acks.outstanding_rows(ledger_id, entry_id, rows, batch_size)

    def leave_out(self, granted: QueuedDelivery, error: PulsarException) -> bool:
        """A block could not be read: it counts as consumed, and stays unacknowledged.

        True if it was trimmed before a cursor that holds nothing back came to it: nobody needs to know.
        """
        is_trimmed = (
            isinstance(error, SegmentGone)
            and self._core.options.subscription_mode == SubscriptionMode.NonDurable
            and (self._reads_files or not granted.length)
        )
        with self._core.lock:
            if granted.generation == self.generation:
                self.consumed += granted.rows.bit_count()
            if is_trimmed:
                self.held.remove_rows(granted.ledger_id, granted.first_entry_id, granted.rows)
        self.send_credit()
        return is_trimmed

    def is_trimmed(self, granted: QueuedDelivery) -> bool:
        """Whether a block was trimmed before a cursor that holds nothing back came to it."""
        if self._core.options.subscription_mode == SubscriptionMode.Durable:
            return False
        return not granted.length or (granted.data is None and not self._core.files.has(granted.path))

    def has_more_arguments(self) -> dict[str, Any]:
        """What the dispatcher has to know to say whether there is more: what has come."""
        numbering, received = self.received()
        return {"numbering": numbering, "received": received}

    def received(self) -> tuple[int, int]:
        """The numbering of deliveries, and the number of the last one."""
        with self._core.lock:
            return self._epoch, self._received

    def arrived(self) -> tuple[int, tuple[int, int, int] | None]:
        """The number of the last delivery, and the first message that waits in the queue."""
        with self._core.lock:
            return self._received, self._core.queue.oldest_of(self)

    def redeliver_unacknowledged(self) -> None:
        """Everything not acknowledged comes again; what is queued is dropped."""
        self._say_acks(at_once=False)
        # Only what had left the queue before this counts as failed.
        self.send_credit(always=True)
        with self._core.lock:
            numbering, received = self._epoch, self._received
            self._drop_queue()
            self.nacks.clear()
            # In order means that what is on its way comes again as well, behind the oldest.
            self._awaits_reset = self._core.options.consumer_type in ORDERED_TYPES
        self._say(lambda rid: RedeliverUnacknowledged(self.consumer_id, numbering, received, rid))
        self.send_credit()

    # --- control ----------------------------------------------------------------------------------

    def call(
        self, method: str, deadline: float, then: Callable[[Any], None] | None = None, **arguments: Any
    ) -> Any:
        """A control request to the dispatcher, after what was acknowledged before; `then` gets the answer
        before any packet behind it is handed on. Raises AlreadyClosed.
        """
        self._core.check()
        self.flush_acks()
        return self.link.request(lambda rid: self.control(rid, method, arguments), deadline, then)

    def seek(self, start: StartPosition, deadline: float) -> None:
        """Go on there; what is queued is dropped before anything from there can be received.

        If its answer is lost it is asked for again: the number tells the dispatcher that it was done.
        """

        def sought(generation: int) -> None:
            with self._core.lock:
                self._drop_older(generation)
                if seeks_of(generation) == seeks_of(self.generation):
                    self.skipped.begin(start.skip, generation)
            self._end_forgotten()
            self.send_credit()

        self.call("seek", deadline, then=sought, seek_id=secrets.randbits(62), **start.target)

    def close(self, deadline: float) -> None:
        """Make acknowledgments durable and leave; what is held goes to others.

        Raises Timeout if that could not be said in time, WrongNode if the partition is away: what was
        acknowledged last may come again.
        """
        had_to_say = bool(self.acks.count or self._statements.unanswered())
        try:
            # Another partition's refusal may have ended the consumer: this one is open all the same.
            if not (self.is_gone() or isinstance(self._core.error, ForkedClient)):
                self.leave(deadline)
        except WrongNode:
            # Its node is not waited for: it is said there soon after it is back.
            Withdrawn(self.link, self.consumer_id, self._leaving)
            if had_to_say:
                raise
        except BaseException:
            Withdrawn(self.link, self.consumer_id, self._leaving)
            raise
        else:
            self.link.remove_endpoint(self.consumer_id)
        finally:
            self._is_open = False
