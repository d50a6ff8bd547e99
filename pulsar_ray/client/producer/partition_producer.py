"""Opens, reopens and closes one producer at one partition."""

from __future__ import annotations

import time
from typing import Any

from pulsar_ray.client.encryption.payload_cipher import PayloadCipher
from pulsar_ray.client.endpoint.ending import notify_of_forks
from pulsar_ray.client.endpoint.endpoint_link import (
    ClosingEndpoint,
    EndpointLink,
    PendingClose,
    ReopenRequest,
    request_open,
)
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.send_callbacks import SyncSend
from pulsar_ray.client.producer.send_queue import SendQueue
from pulsar_ray.client.producer.send_state import ENDED, OPEN
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    IncarnationForgotten,
    PulsarException,
    Timeout,
    TopicNotFound,
    WrongNode,
    error_from,
)
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_schema import version_bytes
from pulsar_ray.session.requests import (
    NO_BLOCK,
    NO_EPOCH,
    NO_SCHEMA,
    OpenProducer,
    ProducerOpened,
    PublishFailed,
)
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute

_FOREVER_S = 1e9


class PartitionProducer:
    """An endpoint on the link to one partition; messages are added to its `queue`.

    The queue writes only while the producer is open at the partition. Each new attachment opens the producer
    again, which repeats the same incarnation and its first unconfirmed entry_seq, so lost answers are
    harmless: the partition knows what it has stored.
    """

    awaited_consumer = None

    def __init__(
        self,
        link: EndpointLink,
        producer_id: int,
        route: PartitionRoute,
        options: ProducerOptions,
        schema_version: int = NO_SCHEMA,
        cipher: PayloadCipher | None = None,
    ) -> None:
        self.link = link
        self.route = route
        self.producer_id = producer_id
        self.queue = queue = SendQueue(link, producer_id, route.partition, options, cipher)
        if schema_version != NO_SCHEMA:
            queue.state.schema_version = version_bytes(schema_version)
        self._schema_version = schema_version
        self.on_receipts = queue.confirm
        """Complete blocks: the queue does, without another call between."""
        self._options = options
        self._io = link.timers
        self._send_timeout_s = options.send_timeout_millis / 1000
        self._pending_close = PendingClose()
        self._topic_epoch = NO_EPOCH
        """In which the producer has the topic for itself."""
        self._attached_to: AttachReply | None = None
        self._opened_at = ""
        """The directory of the partition at which the producer was open last."""
        self._held_because = ""
        """Why the partition stores nothing of the producer, until it is open there again."""
        notify_of_forks(self)

    def forked(self, error: ForkedClient) -> None:
        """Leave to the parent, in a forked child (see `forking`), what is to be sent."""
        self.queue.forked(error)

    # --- opening ----------------------------------------------------------------------------------

    def open(self, deadline: float) -> None:
        """Open at the partition. Raises ProducerBusy, or what attaching raises."""
        self._attached_to = self.link.ensure_attached(deadline)
        if self._options.access_mode == ProducerAccessMode.WaitForExclusive:
            deadline = time.monotonic() + _FOREVER_S
        opened_on: list[Connection | None] = []
        try:
            opened = request_open(
                self.link,
                self._open_request,
                self._pending_close,
                deadline,
                then=lambda _: opened_on.append(self.link.carrier),
            )
            self._check_chunk_size(opened)
        except BaseException:
            ClosingEndpoint(self.link, self.producer_id, self._pending_close)
            raise
        self._topic_epoch = opened.topic_epoch
        self._opened_at = self._attached_to.directory
        self.queue.begin(opened)
        self.link.add_endpoint(self.producer_id, self)
        carrier = self.link.carrier
        if carrier is None:
            # Lost before the link knew of this endpoint: nothing attaches by itself then.
            self.link.begin_attaching()
        elif carrier is opened_on[-1]:
            self.queue.resume(opened, carrier)
        else:
            # Attached anew meanwhile, without this endpoint.
            self._request_open()
        self._begin_timeouts()

    def _check_chunk_size(self, opened: ProducerOpened) -> None:
        """Raise ValueError for chunks that the partition would refuse."""
        size = self._options.chunk_max_message_size
        if self._options.chunking_enabled and size > opened.max_message_size:
            raise ValueError(
                f"chunk_max_message_size={size} is above the topic's max_message_size="
                f"{opened.max_message_size}: give no more, or -1"
            )

    def open_when_back(self, absence: WrongNode) -> None:
        """Open as soon as the partition, which is away, can be attached to."""
        self.queue.begin_later(absence)
        self.link.add_endpoint(self.producer_id, self)
        self.link.begin_attaching()
        self._begin_timeouts()

    def _begin_timeouts(self) -> None:
        if self._send_timeout_s:
            self._io.call_later(min(1.0, self._send_timeout_s), self._check_timeouts)

    def _open_request(self, request_id: int) -> OpenProducer:
        incarnation, replaces, first_seq = self.queue.opening_numbers()
        return OpenProducer(
            request_id,
            self.producer_id,
            self.queue.state.producer_name or None,
            incarnation,
            replaces,
            first_seq,
            int(self._options.access_mode),
            self._options.producer_name is not None,
            self._options.properties,
            self.queue.state.builder is not None,
            self._topic_epoch,
            self._schema_version,
        )

    def reopen(self, attached: AttachReply) -> None:
        """Open again at a new attachment.

        The queue then writes all unconfirmed blocks again, in order.
        """
        self._attached_to = attached
        self._request_open()

    def _request_open(self) -> None:
        if self.queue.state.error is None:
            ReopenRequest(
                self.link,
                self._open_request,
                self._pending_close,
                self._reopened,
                self._not_reopened,
                self._request_open_unless_open,
            )

    def _reopened(self, opened: ProducerOpened, carrier: Connection) -> None:
        self._topic_epoch = opened.topic_epoch
        if self._attached_to is not None:
            self._opened_at = self._attached_to.directory
        self._held_because = ""
        self.queue.resume(opened, carrier)

    def _not_reopened(self, error: PulsarException) -> None:
        if isinstance(error, IncarnationForgotten):
            self.queue.start_over(self._replaced() or error)
            self._request_open()
        else:
            self.fail(error)

    def _replaced(self) -> TopicNotFound | None:
        """Return the error of what was on its way to a topic that was replaced."""
        if self._attached_to is None or self._opened_at in ("", self._attached_to.directory):
            return None
        return TopicNotFound(
            f"{self.route.topic} was deleted while this message was on its way, and another topic of that "
            "name is there now, which does not have it: send it again, the producer goes on there"
        )

    def _request_open_unless_open(self) -> None:
        if self.queue.state.phase is not OPEN:
            self._request_open()

    def on_refused(self, error: PulsarException) -> None:
        """End: the topic was deleted."""
        self.fail(error)

    def on_detached(self) -> None:
        """Write nothing until the producer is open again: the carrier is gone."""
        self.queue.pause()

    @property
    def is_connected(self) -> bool:
        """True while open at the partition, and while that sleeps."""
        phase = self.queue.state.phase
        return phase is OPEN or (self.link.is_asleep and phase is not ENDED)

    @property
    def pending_messages(self) -> int:
        """How many messages are sealed in blocks that have no receipt."""
        return self.queue.state.unconfirmed.messages

    @property
    def awaits_packets(self) -> bool:
        """Whether a receipt or refusal is to come."""
        return self.queue.state.unconfirmed.messages > 0

    @property
    def needs_actor(self) -> bool:
        """Whether messages wait for the partition."""
        return self.queue.has_pending()

    @property
    def takes_keyless(self) -> bool:
        """See Destination."""
        return self.queue.state.takes_keyless

    def on_request(self, request: Any, body: memoryview) -> None:
        """Fail a refused block, send the rest of one, or learn the limit of now."""
        if not isinstance(request, PublishFailed):
            return
        details = request.details or {}
        if details.get("is_evicted"):
            self.fail(error_from(request.error, request.text))
            ClosingEndpoint(self.link, self.producer_id, self._pending_close)
        elif details.get("is_held"):
            self._held_because = request.text
            self.queue.pause()
            self._request_open()
        elif request.entry_seq == NO_BLOCK:
            self.queue.set_limits(details["max_message_size"], details.get("max_delivery_delay_ms", 0))
        elif "stored_sequence_id" in details:
            self.queue.send_rest(request.entry_seq, details["stored_sequence_id"])
        else:
            self.queue.refuse(request.entry_seq, error_from(request.error, request.text, request.details))

    # --- giving up and closing --------------------------------------------------------------------

    def _check_timeouts(self) -> None:
        state = self.queue.state
        if state.error is not None:
            return
        # One that waits for nothing, as most do that are open, needs no lock.
        is_waiting = state.unconfirmed.messages or state.unconfirmed.size or state.phase is not OPEN
        if is_waiting and self.queue.has_expired():
            self.give_up()
        self._io.call_later(min(1.0, self._send_timeout_s), self._check_timeouts)

    def give_up(self) -> None:
        """Fail everything unconfirmed and write it no more: a message got no receipt in time."""
        at, time_s = self.link.where, self._send_timeout_s
        text = f"no receipt from {at} within {time_s} s; whether it was stored is unknown"
        if (absence := self.queue.state.absence) is not None:
            text = f"{text}: {absence.text}"
        elif self._held_because:
            text = f"{text}: {self._held_because}"
        self.queue.start_over(Timeout(text))
        if self.link.is_attached:
            self._request_open()

    def await_receipt(self, sent: SyncSend, value: bytes | None, timeout_s: float) -> MessageId:
        """Wait until the partition has stored the message, and return its id.

        Without a receipt in time the partition gives up all that is unconfirmed. A message in chunks has that
        time for each chunk. Raises Timeout, or the error that the message failed with.
        """
        while not self.link.wait(sent, time.monotonic() + timeout_s):
            if self.queue.state.limits.is_chunked(value) and not self.queue.has_expired():
                continue  # a chunk was confirmed meanwhile
            self.give_up()
            if not sent.is_set():
                raise Timeout(
                    f"no receipt from {self.link.where} within {timeout_s} s; whether the message was "
                    "stored is unknown"
                )
            break
        if sent.error is not None:
            raise sent.error.again()
        assert sent.message_id is not None
        return sent.message_id

    def fail(self, error: PulsarException) -> None:
        """End this producer: unconfirmed messages and later calls get `error`."""
        self.queue.end(error)

    def send_last(self) -> None:
        """Write the batch that is open, for the process ends."""
        self.queue.seal()

    def flush(self, deadline: float) -> None:
        """Wait until everything added so far is confirmed or failed. Raises Timeout."""
        self.queue.state.raise_if_ended()
        flushed = Completion()
        self.queue.when_settled(flushed.set)
        if not self.link.wait(flushed, deadline):
            raise Timeout(f"flush: messages to {self.link.where} are still unconfirmed")

    def close(self, deadline: float) -> None:
        """Write and confirm what was sent, then give the name back.

        A partition that cannot be reached is not waited for: the name is free soon after it can.
        Raises Timeout.
        """
        if self.queue.state.error is not None:
            return
        closing = None
        try:
            self.flush(deadline)
        finally:
            self.fail(AlreadyClosed("the producer is closed"))
            if self._pending_close.leave_asleep(self.link):
                self.link.remove_endpoint(self.producer_id)
            else:
                closing = ClosingEndpoint(self.link, self.producer_id, self._pending_close)
        if closing is not None and not closing.wait(deadline):
            raise Timeout(f"close: {self.link.where} did not answer in time; the name may still be taken")
