"""A consumer's session with a partition's dispatcher: opened, opened again behind each attachment, closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pulsar_ray.client.acks.ack_sender import AckSender
from pulsar_ray.client.acks.partition_acks import UnansweredRequests
from pulsar_ray.client.endpoint.endpoint_link import (
    ClosingEndpoint,
    PendingClose,
    ReopenRequest,
    request_open,
)
from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    PulsarException,
    SubscriptionNotFound,
    WrongNode,
)
from pulsar_ray.session.requests import Call, CloseEndpoint, ConsumerOpened, OpenConsumer
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply

LEFT_DEADLINE_S = 1.0
"""How long a close may take to report it, where the dispatcher sleeps."""


class SessionOwner(Protocol):
    """The consumer of the session's partition."""

    @property
    def awaited_consumer(self) -> tuple[int, bool] | None:
        """See Endpoint.awaited_consumer."""

    def open_request(self, request_id: int) -> OpenConsumer:
        """The request to open, complete also for a dispatcher that is new."""

    def opened(self, opened: ConsumerOpened) -> None:
        """Go on with a dispatcher that has opened the consumer."""

    def session_expired(self) -> None:
        """Give up queued deliveries: the dispatcher gave them to others during a long silence."""

    def partition_replaced(self, *, is_known: bool) -> None:
        """Expect the deliveries of another partition of this name, which may be known by now."""

    def ended(self, error: PulsarException) -> None:
        """Tell the application's thread that the session will not be open again."""


class DispatcherSession:
    """An endpoint on the link to one dispatcher; `lock` is the consumer's.

    It ends in one of three ways: it leaves, it is refused, or it is abandoned, when there is no dispatcher to
    leave.
    """

    awaits_packets = True
    """The dispatcher sends packets of its own accord."""

    def __init__(
        self,
        consumer_id: int,
        owner: SessionOwner,
        requests: UnansweredRequests,
        ack_sender: AckSender,
        on_request: Callable[[Any, memoryview], None],
        lock: threading.Lock,
    ) -> None:
        self.consumer_id = consumer_id
        self.on_request = on_request
        self.is_abandoned = False
        self._known_directory: str | None = None
        """The directory of the last partition that replaced the one it was open on."""
        self.refusal: PulsarException | None = None
        """Why it will not be open again: the subscription was deleted or refuses this consumer."""
        self._owner = owner
        self._requests = requests
        self._ack_sender = ack_sender
        self._lock = lock
        self._attached: AttachReply | None = None
        self._is_opening = False
        self._was_open = False
        self.was_replaced = False
        """Whether it went on at another partition, whose topic was made anew."""
        self._pending_close = PendingClose()
        self._one_leaves = threading.Lock()
        self._has_left = False

    def forked(self, lock: threading.Lock) -> None:
        """Take the new lock, in a forked child."""
        self._lock = lock

    # --- opening ----------------------------------------------------------------------------------

    def attach_through(self, link: ActorLink) -> None:
        """Use this link from now on; nothing may have been sent yet."""
        self._requests.attach_through(link)

    def open(self, deadline: float) -> float:
        """Open at the dispatcher. Raises ConsumerBusy, SubscriptionNotFound, or what attaching raises.

        Returns the deadline, which is a later one where the dispatcher's process was still starting.

        If the answer was lost, and the subscription has been deleted since, the session ends as any open one.
        """
        link = self._requests.link
        deadline = link.ensure_started(deadline)
        self._is_opening = True
        deleted: SubscriptionNotFound | None = None
        link.add_endpoint(self.consumer_id, self)
        try:
            request_open(
                link,
                self._owner.open_request,
                self._pending_close,
                deadline,
                then=lambda opened: self._opened(opened, link.attached),
            )
        except SubscriptionNotFound as error:
            link.remove_endpoint(self.consumer_id)
            if self._attached is None:
                raise
            # Numbers of the subscription that is no more must not be taken for those of a later one.
            deleted = error
        except AlreadyClosed:
            link.remove_endpoint(self.consumer_id)
            raise
        except BaseException as error:
            self.is_abandoned = True
            self._ack_sender.forget()  # a thread that closes the consumer meanwhile waits no longer
            # Asked twice, after a loss, it may have been refused once and opened once.
            closing = ClosingEndpoint(link, self.consumer_id, self._pending_close)
            if isinstance(error, PulsarException):
                closing.wait(deadline)
            raise
        finally:
            self._is_opening = False
        if deleted is not None:
            self.on_refused(deleted)
        return deadline

    def reopen(self, attached: AttachReply) -> None:
        """Open again behind a new attachment, then repeat what was not answered."""
        former = self._attached
        is_other_session = former is not None and former.session_id != attached.session_id
        if not self.is_of(attached.directory):
            # It may have to ask often before it is open there.
            is_known = _is_same(self._known_directory, attached.directory)
            self._known_directory = attached.directory
            self._owner.partition_replaced(is_known=is_known)
        elif former is not None and is_other_session and former.epoch == attached.epoch:
            # This client was silent for longer than its lease: others have got what is queued here by now.
            self._owner.session_expired()

        def opened(answer: ConsumerOpened, _: Connection) -> None:
            self._opened(answer, attached)

        def again() -> None:
            if not self._requests.is_open:
                self.reopen(attached)

        link = self._requests.link
        ReopenRequest(link, self._owner.open_request, self._pending_close, opened, self.on_refused, again)

    def _opened(self, opened: ConsumerOpened, attached: AttachReply | None) -> None:
        if not self.is_abandoned:
            if self._attached is not None and attached is not None:
                self.was_replaced |= not _is_same(attached.directory, self._attached.directory)
            self._attached = attached
            self._owner.opened(opened)

    def on_detached(self) -> None:
        """Send nothing until the session is open again; delivered messages stay in the queue."""
        with self._lock:
            self._was_open = self._requests.is_open
            self._requests.is_open = False

    @property
    def needs_actor(self) -> bool:
        """Whether something is unanswered, or the session was not open.

        A dispatcher that went to sleep before it was may have messages for it.
        """
        return not self._was_open or self._has_to_send

    @property
    def awaited_consumer(self) -> tuple[int, bool] | None:
        """See Endpoint.awaited_consumer."""
        return self._owner.awaited_consumer

    @property
    def _has_to_send(self) -> bool:
        return bool(self._ack_sender.acks.count or self._requests.unanswered())

    def is_of(self, directory: str | None) -> bool:
        """Whether it was open on the partition of this directory.

        An earlier partition of the same name had another number.
        """
        if directory is None or self._attached is None:
            return True
        return _is_same(self._attached.directory, directory)

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Dispatchers send no receipts."""

    # --- ending -----------------------------------------------------------------------------------

    def send_last(self) -> None:
        """Send acknowledgments and failures that wait, for the process ends."""
        if self._requests.is_open:
            self._ack_sender.send_last()

    def on_refused(self, error: PulsarException) -> None:
        """End, for the subscription was deleted, or will not have this consumer again."""
        if self._is_opening or self._attached is None:
            # The thread that opens it gets the error, or has got it and opens it at another dispatcher: this
            # may be the word of one that is gone.
            return
        self.refusal = error
        # Another subscription of the same name may come; this consumer does not belong to it.
        self._requests.link.remove_endpoint(self.consumer_id)
        self._owner.ended(error)
        self._requests.discard(error)

    def abandon(self) -> None:
        """End without a word: the dispatcher is no more."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        self._requests.link.remove_endpoint(self.consumer_id)
        self._requests.is_open = False
        self._ack_sender.forget()

    def is_gone(self) -> bool:
        """Whether nothing is left to close: the session was refused, or abandoned."""
        return self.refusal is not None or self.is_abandoned

    def close(self, deadline: float, why_ended: PulsarException | None) -> None:
        """Leave the dispatcher now, or as soon as it is back.

        `why_ended` is the error that ended the consumer, if one did. Raises Timeout, or WrongNode if the
        partition is away: what was acknowledged last may come again.
        """
        link = self._requests.link
        if link.has_told_end:
            # Closed already, with all others of this process: an exit hook of the application comes behind.
            self.abandon()
        had_to_send = self._has_to_send or len(self._ack_sender.nacks) > 0
        try:
            # Another partition's refusal may have ended the consumer: this session is open all the same.
            if not (self.is_gone() or isinstance(why_ended, ForkedClient)):
                self.leave(deadline)
        except WrongNode:
            # Its node is not waited for: the request to close is sent there soon after it is back.
            ClosingEndpoint(link, self.consumer_id, self._pending_close)
            if had_to_send:
                raise
        except BaseException:
            ClosingEndpoint(link, self.consumer_id, self._pending_close)
            raise
        else:
            link.remove_endpoint(self.consumer_id)
        finally:
            self._requests.is_open = False

    def leave(self, deadline: float) -> None:
        """Have the dispatcher make durable what was acknowledged, and then forget this consumer.

        Failed messages come again at once, for nobody would count them later. Raises Timeout. The thread that
        closes the consumer may call it at the same time as the one that has just opened it.
        """
        with self._one_leaves:
            if not self._has_left:
                self._ack_sender.send_last()
                if not self._leaves_asleep():
                    self._leave(deadline)
            self._has_left = True

    def _leaves_asleep(self) -> bool:
        """Leave a dispatcher that sleeps, if it has taken all that was acknowledged."""
        link = self._requests.link
        if self._has_to_send or not self._pending_close.leave_asleep(link):
            return False
        consumer = self._owner.awaited_consumer
        if consumer is not None:
            # Without this word, too, all goes on once its successor has waited for the grace period.
            link.report_left(*consumer, LEFT_DEADLINE_S)
        return True

    def _leave(self, deadline: float) -> None:
        while not (self.is_gone() or self._pending_close.is_confirmed()):
            # An acknowledgment behind the close would find nobody.
            self._requests.repeat_at_once()
            self._requests.submit(self._close_request, survives_seeks=True)
            if self.is_gone():
                self._requests.discard(self.refusal)
            try:
                self._requests.wait(self._requests.unanswered(), deadline)
            except PulsarException:
                if not self.is_gone():
                    raise

    def _close_request(self, request_id: int) -> CloseEndpoint:
        return self._pending_close.close_request(request_id, self.consumer_id)

    # --- control ----------------------------------------------------------------------------------

    def control(self, request_id: int, method: str, arguments: dict[str, Any]) -> Call:
        """A control request. Raises the refusal if there is no dispatcher to ask any more."""
        if self.refusal is not None:
            raise self.refusal.again()
        return Call(request_id, self.consumer_id, method, arguments)

    def unsubscribe(self, deadline: float) -> None:
        """Delete the subscription here, although its end on another partition may have ended the consumer."""
        try:
            self._requests.link.request(lambda rid: self.control(rid, "unsubscribe", {}), deadline)
        except PulsarException:
            # Refused after its answer was lost: the name belongs to another subscription by now.
            if self.refusal is None:
                raise


def _is_same(directory: str | None, other: str) -> bool:
    """Whether two directories are those of one partition, which may have moved to another node."""
    return directory is not None and directory.rpartition("/")[2] == other.rpartition("/")[2]
