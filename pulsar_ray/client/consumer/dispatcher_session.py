"""How a consumer comes to a partition's dispatcher, comes again behind each attachment, and leaves it."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pulsar_ray.client.acks.ack_sender import AckSender
from pulsar_ray.client.acks.unanswered_requests import UnansweredRequests
from pulsar_ray.client.endpoint.leaving import Leaving
from pulsar_ray.client.endpoint.reopening import Reopening, open_first
from pulsar_ray.client.endpoint.withdrawn import Withdrawn
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import AlreadyClosed, PulsarException, SubscriptionNotFound
from pulsar_ray.session.requests import Call, CloseEndpoint, ConsumerOpened, OpenConsumer
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply


class DispatcherSession(AckSender):
    """The part of a PartitionConsumer that comes and goes; `lock` is shared with the consumer above it.

    It ends in one of three ways: it leaves, it is refused, or it is abandoned, when there is nobody to leave.
    """

    awaits_packets = True
    """Of the actor's own accord."""

    def __init__(
        self, link: ActorLink, consumer_id: int, options: ConsumerOptions, lock: threading.Lock
    ) -> None:
        super().__init__(link, consumer_id, options, lock)
        self.start: dict[str, Any] | None = options.first_start
        """Where a non-durable cursor is to begin; behind what has arrived, should its dispatcher die."""
        self.is_abandoned = False
        self.refusal: PulsarException | None = None
        """Why it will not be open again: what it was open at was deleted, or does not want it."""
        self._attached: AttachReply | None = None
        self._is_opening = False
        self._leaving = Leaving()
        self._one_leaves = threading.Lock()
        self._has_left = False

    # --- opening ----------------------------------------------------------------------------------

    def attach_through(self, link: ActorLink) -> None:
        """By this link, before anything is said."""
        self.link, self._io, self._statements = link, link.timers, UnansweredRequests(link)

    def open(self, deadline: float) -> ConsumerOpened:
        """Open at the dispatcher. Raises ConsumerBusy, SubscriptionNotFound, or what attaching raises."""
        self.link.ensure_attached(deadline)
        self._is_opening = True
        self.link.add_endpoint(self.consumer_id, self)
        try:
            opened: ConsumerOpened = open_first(
                self.link,
                self._open_request,
                self._leaving,
                deadline,
                then=lambda opened: self._opened(opened, self.link.attached),
            )
        except (SubscriptionNotFound, AlreadyClosed):
            self.link.remove_endpoint(self.consumer_id)
            raise
        except BaseException as error:
            self.is_abandoned = True
            self.forget_acknowledgments()  # who closes it meanwhile waits no longer
            # Asked twice, after a loss, it may have been refused once and opened once.
            withdrawn = Withdrawn(self.link, self.consumer_id, self._leaving)
            if isinstance(error, PulsarException):
                withdrawn.wait(deadline)
            raise
        finally:
            self._is_opening = False
        return opened

    def reopen(self, attached: AttachReply) -> None:
        """A new attachment: open again, declaring what is held; then what was not answered is said again."""
        former = self._attached
        is_other_session = former is not None and former.session_id != attached.session_id
        if former is not None and is_other_session and former.epoch == attached.epoch and self.start is None:
            # This client was silent for longer than its lease: others have got what is queued here by now.
            with self._lock:
                self._give_up_queue()

        def opened(answer: ConsumerOpened, _: Connection) -> None:
            self._opened(answer, attached)

        def again() -> None:
            if not self._is_open:
                self.reopen(attached)

        Reopening(self.link, self._open_request, self._leaving, opened, self.on_refused, again)

    def on_detached(self) -> None:
        """The carrier is gone; what was delivered stays in the queue."""
        with self._lock:
            self._is_open = False

    def is_of(self, directory: str | None) -> bool:
        """Whether it was open on the partition of this directory, not on an earlier one of the same name."""
        return directory is None or self._attached is None or self._attached.directory == directory

    @abstractmethod
    def _open_request(self, request_id: int) -> OpenConsumer:
        """Everything the dispatcher has to know of it, also if it never heard of it before."""

    @abstractmethod
    def _opened(self, opened: ConsumerOpened, attached: AttachReply | None) -> None:
        """It was opened, at what this attachment leads to."""

    @abstractmethod
    def _give_up_queue(self) -> None:
        """Called with the lock held: nothing that is queued is this consumer's any more."""

    @abstractmethod
    def on_request(self, request: Any, body: memoryview) -> None:
        """A packet for it."""

    @abstractmethod
    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Of what it sent."""

    # --- ending -----------------------------------------------------------------------------------

    def on_refused(self, error: PulsarException) -> None:
        """The topic or subscription was deleted, or will not have this consumer again."""
        if self._is_opening:
            return  # whoever opens it is told
        self.refusal = error
        # Another subscription of the same name may come; this consumer does not belong to it.
        self.link.remove_endpoint(self.consumer_id)
        self._end(error)
        self._statements.discard(error)

    @abstractmethod
    def _end(self, error: PulsarException) -> None:
        """It will not be open again: whoever receives is told."""

    def abandon(self) -> None:
        """What it was attached to is no more: nothing is said or asked any more."""
        if self.is_abandoned:
            return
        self.is_abandoned = True
        self.acks_gathered = 0
        self.link.remove_endpoint(self.consumer_id)
        self._is_open = False
        self.forget_acknowledgments()

    def leave(self, deadline: float) -> None:
        """Have the dispatcher make durable what was acknowledged, and then forget this consumer.

        Raises Timeout. Whoever closes the consumer may call it at the same time as who has just opened it.
        """
        with self._one_leaves:
            if not self._has_left:
                self._say_acks(at_once=True)
                self._leave(deadline)
                self._has_left = True

    def _leave(self, deadline: float) -> None:
        while not (self.is_gone() or self._leaving.has_left()):
            self._say(self._close_request)
            if self.is_gone():
                self._statements.discard(self.refusal)
            try:
                self._wait(self._statements.unanswered(), deadline)
            except PulsarException:
                if not self.is_gone():
                    raise

    def is_gone(self) -> bool:
        """Whether nothing is left to close: it was refused, or given up."""
        return self.refusal is not None or self.is_abandoned

    def unsubscribe(self, deadline: float) -> None:
        """Delete the subscription here, although its end on another partition may have ended the consumer."""
        try:
            self.link.request(lambda rid: self.control(rid, "unsubscribe", {}), deadline)
        except PulsarException:
            # Refused after its answer was lost: the name belongs to another subscription by now.
            if self.refusal is None:
                raise

    def control(self, request_id: int, method: str, arguments: dict[str, Any]) -> Call:
        """A control request. Raises why there is nobody to ask any more."""
        if self.refusal is not None:
            raise self.refusal.again()
        return Call(request_id, self.consumer_id, method, arguments)

    def _close_request(self, request_id: int) -> CloseEndpoint:
        return self._leaving.close_request(request_id, self.consumer_id)
