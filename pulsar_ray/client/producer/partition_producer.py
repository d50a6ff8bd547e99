"""One producer's side of one partition: opening and opening again, receipts, giving up, closing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pulsar_ray.client.endpoint.closing_endpoint import ClosingEndpoint
from pulsar_ray.client.endpoint.forking import notify_of_forks
from pulsar_ray.client.endpoint.open_requests import ReopenRequest, request_open
from pulsar_ray.client.endpoint.pending_close import PendingClose
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.send_queue import SendQueue
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    ProducerFenced,
    PulsarException,
    Timeout,
    WrongNode,
    error_from,
)
from pulsar_ray.lane.completion import Completion
from pulsar_ray.session.requests import OpenProducer, ProducerOpened, PublishFailed
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute


class PartitionProducer(SendQueue):
    """An endpoint on the link to one partition."""

    def __init__(
        self, link: ActorLink, producer_id: int, route: PartitionRoute, options: ProducerOptions
    ) -> None:
        super().__init__(link, producer_id, route, options)
        self._pending_close = PendingClose()
        notify_of_forks(self)

    def forked(self, error: ForkedClient) -> None:
        """In a forked child (see `forking`): what is pending is the parent's to send."""
        self._drop_all()
        self._error = error

    # --- opening ----------------------------------------------------------------------------------

    def open(self, deadline: float) -> None:
        """Open at the partition. Raises ProducerBusy, or what attaching raises."""
        self.link.ensure_attached(deadline)
        try:
            opened = request_open(self.link, self._open_request, self._pending_close, deadline)
        except BaseException:
            ClosingEndpoint(self.link, self.producer_id, self._pending_close)
            raise
        self._make_builder(opened)
        self.link.add_endpoint(self.producer_id, self)
        with self._state:
            self._carrier = self.link.carrier
            self._is_open = self._carrier is not None
        self._watch_timeouts()

    def open_when_back(self, absence: WrongNode) -> None:
        """Open as soon as the partition, which is away, can be attached to."""
        self._absent_since_opening = absence
        self.link.add_endpoint(self.producer_id, self)
        self.link.begin_attaching()
        self._watch_timeouts()

    def _watch_timeouts(self) -> None:
        if self._send_timeout_s:
            self._io.call_later(min(1.0, self._send_timeout_s), self._check_timeouts)

    def _open_request(self, request_id: int) -> OpenProducer:
        with self._state:
            first = self._pending.first
            first_seq = first.entry_seq if first is not None else self._numbers.next_seq
            return OpenProducer(
                request_id,
                self.producer_id,
                self.name or None,
                self._numbers.incarnation,
                self._numbers.replaces,
                first_seq,
                int(self._options.access_mode),
                self._options.producer_name is not None,
                self._options.properties,
            )

    def reopen(self, attached: AttachReply) -> None:
        """A new attachment: open again, then everything pending is written again in order."""
        self._request_open()

    def _request_open(self) -> None:
        if self._error is None:
            ReopenRequest(
                self.link,
                self._open_request,
                self._pending_close,
                self._reopened,
                self._not_reopened,
                self._again,
            )

    def _reopened(self, opened: ProducerOpened, carrier: Connection) -> None:
        with self._state:
            if self.link.carrier is not carrier:
                return
            if self._builder is None:
                self._make_builder(opened)
                self._absent_since_opening = None
            self._carrier = carrier
            self._is_open = True
            self._numbers.replaces = 0
        self._pump()

    def _not_reopened(self, error: PulsarException) -> None:
        if isinstance(error, ProducerFenced):
            self._start_incarnation(error)
            self._request_open()
        else:
            self.fail(error)

    def _again(self) -> None:
        if not self._is_open:
            self._request_open()

    def on_refused(self, error: PulsarException) -> None:
        """The topic or subscription was deleted."""
        self.fail(error)

    def on_detached(self) -> None:
        """The carrier is gone: nothing is written until the producer is open again."""
        with self._state:
            self._is_open = False
            self._closed_at_s = time.monotonic()
            self._sure_room = 0
            self._pending.resend()

    def payload_memory(self, length: int) -> memoryview | None:
        """Where a payload can be made so that it need not be copied to be sent; None if there is no such."""
        carrier = self._carrier
        if carrier is None or not self._is_open or self._options.compression_type:
            return None
        return carrier.room(length)

    @property
    def awaits_packets(self) -> bool:
        """Whether a receipt or refusal is to come."""
        return self._pending.messages > 0

    # --- receipts ---------------------------------------------------------------------------------

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Complete blocks."""
        with self._state:
            if not self._is_open:
                # They may be of an incarnation given up, whose numbers mean other blocks by now; or they
                # come again.
                return
            pending = self._pending
            for _, entry_seq, _, ledger_id, entry_id in rows:
                pending.answer(entry_seq, (ledger_id, entry_id, None))
            self._callbacks.settled.extend(pending.take_settled())
            if self._waiting_for_room or self.on_room is not None:
                self._made_room()
        self._callbacks.run()
        self._pump()

    def _fail_pending(self, error: PulsarException) -> None:
        """Called with the state lock held; `_callbacks.run` must follow."""
        blocks = self._pending.take_all()
        for block in blocks:
            block.outcome = block.outcome or (-1, -1, error)
        self._callbacks.settled.extend(blocks)
        self._made_room()

    def on_request(self, request: Any, body: memoryview) -> None:
        """A refusal of one block."""
        if isinstance(request, PublishFailed):
            with self._state:
                if not self._is_open:
                    return
                error = error_from(request.error, request.text, request.details)
                self._pending.answer(request.entry_seq, (-1, -1, error))
                self._callbacks.settled.extend(self._pending.take_settled())
                self._made_room()
            self._callbacks.run()
            self._pump()

    # --- giving up and closing --------------------------------------------------------------------

    def _check_timeouts(self) -> None:
        if self._error is not None:
            return
        with self._state:
            if not self._is_open and not self._batching:
                # What gathers while detached gets its time from here on.
                self._take_sealed(seal=True)
            first = self._pending.first
            expired = first is not None and time.monotonic() - first.sealed_s > self._send_timeout_s
        if expired:
            self.give_up()
        self._io.call_later(min(1.0, self._send_timeout_s), self._check_timeouts)

    def give_up(self) -> None:
        """A message got no receipt in time: everything pending fails and is not written any more."""
        text = f"no receipt within {self._send_timeout_s} s; whether it was stored is unknown"
        if (absence := self.absence) is not None:
            text = f"{text}: {absence.text}"
        self._start_incarnation(Timeout(text))
        if self.link.is_attached:
            self._request_open()

    def _start_incarnation(self, error: PulsarException) -> None:
        """Fail everything pending and number anew; the partition then refuses what is left of the old
        incarnation.
        """
        with self._state:
            self._is_open = False
            self._take_sealed(seal=True)
            self._fail_pending(error)
            self._numbers.renew()
        self._callbacks.run()

    def fail(self, error: PulsarException) -> None:
        """End this producer: pending messages and later calls get `error`."""
        with self._state:
            self._is_open = False
            self._error = error
            if self._builder is not None:
                self._take_sealed(seal=True)
            self._fail_pending(error)
        self._callbacks.run()

    def check(self) -> None:
        """Raise what ended this producer, if anything did."""
        if self._error is not None:
            raise self._error.again()

    def flush(self, deadline: float) -> None:
        """Wait until everything enqueued so far is confirmed or failed. Raises Timeout."""
        self.check()
        flushed = Completion()
        self.when_settled(flushed.set)
        if not self.link.wait(flushed, deadline):
            raise Timeout("flush: messages are still unconfirmed")

    def close(self, deadline: float) -> None:
        """Write and confirm what is pending, then give the name back.

        A partition that cannot be reached is not waited for: the name is free soon after it can.
        Raises Timeout.
        """
        if self._error is not None:
            return
        try:
            self.flush(deadline)
        finally:
            self.fail(AlreadyClosed("the producer is closed"))
            closing = ClosingEndpoint(self.link, self.producer_id, self._pending_close)
        if not closing.wait(deadline):
            raise Timeout("close: the partition did not answer in time; the name may still be taken")

    @property
    def is_connected(self) -> bool:
        """True while open at the partition."""
        return self._is_open
