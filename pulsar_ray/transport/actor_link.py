"""A client process's link to one actor.

It attaches, carries packets, notices a loss, attaches again, and notifies its endpoints.

Endpoints (producers, consumers, followers of this process at that actor) share the link. It never gives up by
itself: each waiting caller has a deadline of its own.

An actor that nobody used may go to sleep. Its links are parked then: they cost no thread and no ping, and
attach again when an endpoint needs the actor, which starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

from pulsar_ray.errors import (
    AlreadyClosed,
    ForkedClient,
    Moved,
    NotConnected,
    PulsarException,
    SessionLost,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    UnknownError,
    WrongNode,
)
from pulsar_ray.lane.io_thread import IoThread, LoopTimers, Timers
from pulsar_ray.lane.waiting import Completion, ensure_may_wait
from pulsar_ray.session.packet import Buffer, Packet
from pulsar_ray.session.packet_encoders import RECEIPT, receipts_by_producer
from pulsar_ray.session.requests import Leave, MovedNotice, Pong, Request, decode_request, encode_request
from pulsar_ray.transport.actor_attacher import ActorAttacher
from pulsar_ray.transport.actor_names import topic_of_actor
from pulsar_ray.transport.carriers import Connection, open_connection
from pulsar_ray.transport.cluster import AttachReply, Cluster
from pulsar_ray.transport.endpoint import (
    ANSWERS,
    FOLLOWER,
    CarrierWaiters,
    Endpoint,
    KeepAlive,
    PendingRequests,
    Reply,
    WakeableEvent,
)

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0
STARTING_S = 60.0
"""An opening waits so much longer for a process that is starting.

Ray gives one up after that time.
"""
STARTING_LOOK_S = 1.0
STARTED_S = 10.0
"""The time that an opening has left once such a process has started."""
_awaits_packets = attrgetter("awaits_packets")


class Phase(Enum):
    """Names how far a link has got; it changes under the link's lock alone.

    DETACHED -> ATTACHING -> ATTACHED -> LOSING -> DETACHED, or to ASLEEP where the actor said so; from there
    on WAKING -> ATTACHED. An attempt that is given up leads back to where it began. From everywhere to
    CLOSED, and then to OVER.
    """

    DETACHED = "no carrier, and nobody attaches"
    ATTACHING = "a thread tries to attach"
    ATTACHED = "a carrier stands, or stood while this process told its end over it"
    LOSING = "the carrier is lost, and the endpoints learn of it"
    ASLEEP = "the actor left because nobody used it, and nothing here has needed it since"
    WAKING = "a thread tries to attach for the first time since the actor fell asleep"
    CLOSED = "never attached again"
    OVER = "closed, and every waiting caller was given the reason"


_BEGUN = {Phase.DETACHED: Phase.ATTACHING, Phase.ASLEEP: Phase.WAKING}
_GIVEN_UP = {begun: before for before, begun in _BEGUN.items()}
_ENDED = (Phase.CLOSED, Phase.OVER)


class ActorLink:
    """One session with one actor; what finds it and asks it is `ActorAttacher`."""

    def __init__(
        self,
        cluster: Cluster,
        address: str,
        find_address: Callable[[], str],
        client_id: str,
        transport: str,
        *,
        pushes: bool,
        loop: asyncio.AbstractEventLoop | None = None,
        on_parked: Callable[[ActorLink], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._attaching = ActorAttacher(cluster, address, find_address, client_id, transport)
        self._client_id = client_id
        self._transport = transport
        self._pushes = pushes
        self._pid = os.getpid()
        self._loop = loop
        self.loop_timers = None if loop is None else LoopTimers(loop)
        """Of the loop this link lives on, if it does."""
        self.timers: Timers = self.loop_timers or IoThread.get()
        """For what its endpoints do later."""
        self._endpoints: dict[int, Endpoint] = {}
        self._replies = PendingRequests()
        self._keep_alive = KeepAlive(cluster, lambda: self._connection, self._lost, self.close, loop)
        self._state = threading.Condition()
        self._connection: Connection | None = None
        self._waiters = CarrierWaiters()
        """The threads in `wait`; woken when a new carrier stands, and at the end."""
        self._phase = Phase.DETACHED
        self._left_asleep: Connection | None = None
        """The carrier over which the actor has notified that it goes to sleep."""
        self._on_parked = on_parked
        self._leaves_over: Connection | None = None
        """The carrier over which this process has told that it ends."""
        self._ended: PulsarException | None = None
        self.attached: AttachReply | None = None
        self.last_error: PulsarException | None = None

    def forked(self) -> None:
        """End this link silently in a forked child, where another thread's lock would stay locked."""
        self._state = threading.Condition()
        self._phase = Phase.OVER
        self._connection = None

    # --- state ------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The actor's name, as it was found last."""
        return self._attaching.address

    @property
    def where(self) -> str:
        """The actor's name, and the host that it was attached to last, for errors."""
        host = "" if self.attached is None else self.attached.host
        return f"{self.address} on {host}" if host else self.address

    @property
    def is_attached(self) -> bool:
        """True while a carrier stands."""
        return self._connection is not None

    @property
    def is_asleep(self) -> bool:
        """Whether the actor left because nobody used it, until an attempt to attach has ended."""
        return self._phase in (Phase.ASLEEP, Phase.WAKING)

    @property
    def is_parked(self) -> bool:
        """True while the actor is asleep and nothing here has needed it since."""
        return self._phase is Phase.ASLEEP

    def ensure_attached(self, deadline: float) -> AttachReply:
        """Wait until attached; raises what attaching met last once `deadline` (time.monotonic) has passed."""
        if os.getpid() != self._pid:
            raise ForkedClient
        with self._state:
            while self._connection is None:
                if self._ended is not None:
                    raise self._ended.again()
                if self._phase in _ENDED:
                    raise AlreadyClosed("the client is closed")
                if self.has_told_end:
                    raise AlreadyClosed("this process has told the broker that it ends")
                self._start_attaching()
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._state.wait(remaining):
                    raise self._lateness()
                error = self.last_error
                # A partition on a node that is away may take days to come back.
                if error is not None and (not error.retriable or isinstance(error, WrongNode)):
                    raise error.again()
            assert self.attached is not None
            return self.attached

    def _lateness(self) -> PulsarException:
        """Say why the link was not attached in time."""
        if self.last_error is None:
            return Timeout(f"{self.where} did not answer an attach in time; is the broker running?")
        if isinstance(self.last_error, Moved):
            # Until Ray has noticed that a node is gone, nobody says that it is away.
            return WrongNode(
                f"{self.where}: no process of it was found in time, as when its node is gone: `pulsar-ray "
                "health` says what is away, and its node with its disk brings it back"
            )
        return self.last_error.again()

    def ensure_started(self, deadline: float) -> float:
        """Wait as `ensure_attached`, and longer while Ray is still starting the actor's process.

        That takes a while where many start at once. Returns the deadline for what is asked next: the given
        one, or a later one.
        """
        given, last = deadline, deadline + STARTING_S
        while True:
            try:
                self.ensure_attached(deadline)
            except PulsarException as error:
                is_away = isinstance(error, WrongNode) and not isinstance(self.last_error, Moved)
                if not error.retriable or is_away:
                    raise
                if not self._cluster.is_starting(self.address):
                    raise
                if deadline >= last:
                    raise Timeout(
                        f"{self.where} is still starting, {STARTING_S:.0f} s after the operation's time was "
                        "over: its node may be starting many processes, or have no memory or CPU left for "
                        "one. Try again"
                    ) from None
                deadline = min(time.monotonic() + STARTING_LOOK_S, last)
            else:
                return given if deadline == given else max(given, time.monotonic() + STARTED_S)

    def attaches(self, deadline: float) -> bool:
        """Whether the link is attached, or becomes so at its next attempt.

        The first attempt since the link was lost is awaited.
        """
        with self._state:
            while not (self._connection or self.last_error or self.is_closed or self.has_told_end):
                self._start_attaching()
                if not self._state.wait(max(0.0, deadline - time.monotonic())):
                    break
            return self._connection is not None

    @property
    def absence(self) -> WrongNode | None:
        """Why the actor is away, as the last attempt to attach found."""
        error = self.last_error
        return error if self._connection is None and isinstance(error, WrongNode) else None

    def begin_attaching(self) -> None:
        """Attach in the background, and go on trying while it has endpoints."""
        with self._state:
            if self._connection is None:
                self._start_attaching()

    def wake(self) -> None:
        """Attach again if the link is parked, for an endpoint that has something to send."""
        if self._phase is Phase.ASLEEP:
            self.begin_attaching()

    def report_left(self, incarnation: int, calls_election: bool, timeout_s: float) -> None:
        """Let the actor not wait for a consumer that was closed while parked.

        The word may get lost.
        """
        with contextlib.suppress(PulsarException):
            self._cluster.controller(
                "consumer_left", self.address, incarnation, calls_election, timeout_s=timeout_s
            )

    def awaited_consumers(self) -> list[tuple[int, bool]]:
        """Return what `Endpoint.awaited_consumer` is of each that has one."""
        found = [endpoint.awaited_consumer for endpoint in list(self._endpoints.values())]
        return [consumer for consumer in found if consumer is not None]

    def add_endpoint(self, endpoint_id: int, endpoint: Endpoint) -> None:
        """Give packets for this id to `endpoint` from now on.

        The endpoint is opened again after each re-attach.
        """
        self._endpoints[endpoint_id] = endpoint

    def remove_endpoint(self, endpoint_id: int) -> None:
        """Forget an endpoint.

        Nobody waits any more for a parked link that has lost its last one.
        """
        was_there = self._endpoints.pop(endpoint_id, None) is not None
        if was_there and not self._endpoints and self.is_parked and self._on_parked is not None:
            self._on_parked(self)

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._phase in _ENDED

    @property
    def is_over(self) -> bool:
        """Whether nothing comes over it any more."""
        has_left = self._leaves_over is not None and self._connection is None
        return has_left or self._phase is Phase.OVER

    @property
    def has_endpoints(self) -> bool:
        """True while anybody uses this link."""
        return bool(self._endpoints)

    @property
    def is_unused(self) -> bool:
        """Whether nobody has an endpoint here, or waits for a reply."""
        return not (self._endpoints or self._replies.awaited)

    # --- sending ----------------------------------------------------------------------------------

    @property
    def carrier(self) -> Connection | None:
        """The carrier of packets now; another one after each attach."""
        return self._connection

    def send(self, buffers: list[Any], only_on: Connection | None = None, *, waits: bool = False) -> bool:
        """Write packets to the carrier; False when detached (a re-attach resends what is pending).

        With `waits` the caller is about to `wait` for the answer.

        With `only_on`, False also if another carrier has taken its place: packets that belong behind others
        which that one has not seen must not overtake them there.
        """
        connection = self._connection
        if connection is None or (only_on is not None and connection is not only_on):
            return False
        try:
            connection.send(buffers, waits=waits)
        except ForkedClient:
            raise
        except (PulsarException, OSError) as error:
            self._lost(connection, error)
            return False
        return True

    def request_async(
        self,
        build: Callable[[int], Request],
        reply: Reply,
        *,
        waits: bool = False,
        behind: Sequence[Buffer] = (),
    ) -> None:
        """Send a request with an id of its own; `reply(value, error)` follows.

        The error is SessionLost if the carrier is lost. The packets `behind` it are written together with it.
        """
        request_id = self._replies.add(reply)
        try:
            packet = encode_request(build(request_id))
        except PulsarException as error:
            self._replies.fail(request_id, error)
            return
        if not self.send([*packet, *behind], waits=waits):
            self._replies.fail(request_id, NotConnected(f"not attached to {self.where} just now"))

    def request(
        self, build: Callable[[int], Request], deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any:
        """Send a request and wait for its answer.

        It attaches first, and again if the carrier is lost.

        `then` gets the answer before any packet behind it is handed on.
        """
        return self.ask(lambda reply: self.request_async(build, reply, waits=True), deadline, then)

    def ask(
        self, send: Callable[[Reply], None], deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any:
        """Wait for the answer to a request that `send` sends, each time anew.

        As `request`. Raises NotAllowedError, with nothing sent, in a callback that must not wait.
        """
        ensure_may_wait("a request to the broker")
        while True:
            self.ensure_attached(deadline)
            answered = Completion()
            outcome: list[Any] = [None, None]

            def reply(
                value: Any,
                error: PulsarException | None,
                o: list[Any] = outcome,
                a: Completion = answered,
            ) -> None:
                o[0], o[1] = value, error
                if error is None and then is not None:
                    then(value)
                a.set()

            send(reply)
            if not self.wait(answered, deadline):
                if self.is_closed:
                    raise (self._ended or AlreadyClosed("the client was closed meanwhile")).again()
                raise (self.last_error or Timeout(f"{self.where} did not answer in time")).again()
            value, error = outcome
            if error is None:
                return value
            if not isinstance(error, (SessionLost, NotConnected)) or time.monotonic() > deadline:
                raise error.again()
            time.sleep(FIRST_BACKOFF_S)

    def wait(self, event: WakeableEvent, deadline: float) -> bool:
        """Wait for `event`, reading the carrier in this thread where possible.

        False at the deadline, and once the link is closed: nothing comes any more. At once behind `leave`:
        who waits already is left alone, and what an exit hook asks for is not to hold up the exit.
        """
        if self._connection is None and self.is_over:
            return event.is_set()
        while True:
            connection = self._connection
            if (connection is not None and connection.wait(event, deadline)) or event.is_set():
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0 or self._phase is Phase.OVER:
                return event.is_set()

            def has_changed(seen: Connection | None = connection) -> bool:
                return self._connection is not seen or self._phase is Phase.OVER

            self._waiters.wait(event, remaining, has_changed)

    # --- receiving --------------------------------------------------------------------------------

    def on_packets(self, connection: Connection, packets: list[Packet]) -> None:
        """All packets of one read, in order (the connection's handler interface)."""
        self._keep_alive.heard_at = time.monotonic()
        for packet in packets:
            if packet.type == RECEIPT:
                for producer_id, rows in receipts_by_producer(packet):
                    endpoint = self._endpoints.get(producer_id)
                    if endpoint is not None:
                        endpoint.on_receipts(rows)
                continue
            request = decode_request(packet)
            if isinstance(request, ANSWERS):
                self._replies.answered(request)
            elif type(request) is MovedNotice:
                if request.is_asleep:
                    self._left_asleep = connection
                raise SessionLost(f"the actor moved: {request.reason}")
            elif type(request) is not Pong:
                # Packets that actors send of their own accord begin with the endpoint's id; a follower has
                # only one.
                first: Any = request[0]
                endpoint = self._endpoints.get(first) or self._endpoints.get(FOLLOWER)
                if endpoint is not None:
                    endpoint.on_request(request, packet.body)

    def _is_quiet(self) -> bool:
        """Whether nothing is to come before something is sent."""
        return not (self._replies.awaited or any(map(_awaits_packets, list(self._endpoints.values()))))

    def on_lost(self, connection: Connection, error: PulsarException) -> None:
        """The connection ended by itself (the connection's handler interface)."""
        self._lost(connection, error)

    # --- losing and attaching ---------------------------------------------------------------------

    def _lost(self, connection: Connection | None, error: BaseException) -> None:
        with self._state:
            if connection is None or self._connection is not connection:
                return
            self._connection = None
            if connection is self._leaves_over:
                # The actor has taken the last word. Threads of the application end with the process.
                return
            # Endpoints learn of it before anything can attach again, whoever asks for that, so that nobody
            # writes to a carrier it is not open on, or takes one that it is open on for lost.
            self._phase = Phase.LOSING
        is_parked = False
        try:
            connection.close()
            logger.debug("link of %s lost: %s", self._client_id, error)
            for endpoint in list(self._endpoints.values()):
                endpoint.on_detached()
            self._replies.fail_all(SessionLost(f"the connection to the actor was lost: {error}"))
        finally:
            with self._state:
                is_parked = connection is self._left_asleep
                self._left_asleep = None
                if self._phase is Phase.LOSING:
                    self._phase = Phase.ASLEEP if is_parked else Phase.DETACHED
                if is_parked:
                    self._attaching.expect_moved()
                    self.last_error = None
                elif self._endpoints:
                    # Nobody else uses the link just now; it must not keep the actor from sleeping.
                    self._start_attaching()
                # A caller that waits for the link could not begin to attach it meanwhile.
                self._state.notify_all()
        if is_parked:
            self._parked()

    def _parked(self) -> None:
        """Attach again if an endpoint needs the actor.

        Each calls `wake` for what it needs later.
        """
        if any(endpoint.needs_actor for endpoint in list(self._endpoints.values())):
            self.begin_attaching()
        elif self._on_parked is not None:
            self._on_parked(self)

    def _start_attaching(self) -> None:
        """Start an attempt to attach, unless one runs; called with the state lock held."""
        begun = _BEGUN.get(self._phase)
        if begun is None or self._leaves_over is not None:
            return
        self._phase = begun
        threading.Thread(target=self._attach_until_done, name="pulsar-ray-attach", daemon=True).start()

    def _attach_until_done(self) -> None:
        backoff = FIRST_BACKOFF_S
        while not self.is_closed:
            try:
                self._attach_once()
                return
            except AlreadyClosed as error:
                self.last_error = error.again()
                break
            except PulsarException as error:
                self.last_error = error.again()
                logger.debug("attach failed: %s", error)
            except Exception as error:
                self.last_error = UnknownError(f"attaching failed: {error!r}")
                logger.exception("attaching to %s failed", self.address)
            with self._state:
                if self._phase is Phase.WAKING:
                    self._phase = Phase.ATTACHING
            if isinstance(self.last_error, (SubscriptionNotFound, TopicNotFound)):
                # Deleted, and nothing of this link will come back.
                ended = self._as_deleted(self.last_error)
                for endpoint in list(self._endpoints.values()):
                    endpoint.on_refused(ended)
            with self._state:
                is_worth_it = self.last_error.retriable and not isinstance(self.last_error, WrongNode)
                is_given_up = not (is_worth_it or self._endpoints)
                if is_given_up:
                    self._phase = _GIVEN_UP.get(self._phase, self._phase)
                self._state.notify_all()
            if is_given_up:
                return
            time.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_S)
        with self._state:
            self._phase = _GIVEN_UP.get(self._phase, self._phase)
            self._state.notify_all()

    def _as_deleted(self, error: PulsarException) -> PulsarException:
        """The error for those who were open at an actor whose topic is deleted.

        A topic of the name may be there again by now, or whenever they are asked next; they are of another.
        """
        if self.attached is None or not isinstance(error, TopicNotFound):
            return error
        deleted = error.again()
        deleted.text = (
            f"{topic_of_actor(self.address)} was deleted, and what was open on it has ended: open it anew, "
            "once a topic of this name is there"
        )
        return deleted

    def _attach_once(self) -> None:
        attached = self._attaching.attach()
        address = self._attaching.address
        quiet = None if self._pushes else self._is_quiet
        connection = open_connection(
            self._cluster,
            address,
            attached,
            self._transport,
            self,
            pushes=self._pushes,
            is_quiet=quiet,
            loop=self._loop,
        )
        with self._state:
            if self.is_closed:
                connection.close()
                return
            self.attached = attached
            self._connection = connection
            self._phase = Phase.ATTACHED
            self.last_error = None
            endpoints = list(self._endpoints.values())
            self._state.notify_all()
        self._waiters.wake_all()
        self._keep_alive.begin(connection, address)
        for endpoint in endpoints:
            endpoint.reopen(attached)
        if connection.is_lost:
            self._lost(connection, SessionLost("lost while attaching"))

    # --- ending -----------------------------------------------------------------------------------

    def leave(self) -> None:
        """Tell the actor, behind the last words of the endpoints, that this process ends.

        On the I/O thread; nothing blocks. Nobody attaches again.
        """
        connection = self._connection
        if connection is None:
            return
        self._leaves_over = connection
        with contextlib.suppress(PulsarException, OSError, RuntimeError):  # lost meanwhile, or its loop is
            connection.write_at_once()
            for endpoint in list(self._endpoints.values()):
                endpoint.send_last()
            connection.send(encode_request(Leave("its process ends")))

    @property
    def has_told_end(self) -> bool:
        """Whether `leave` has told the actor, which ends the session as if all were closed."""
        return self._leaves_over is not None

    @property
    def has_left(self) -> bool:
        """Whether the actor has answered `leave`, by ending the session, or cannot any more."""
        left = self._leaves_over
        if left is None or left.is_lost:
            return True
        # A loop that has stopped reads no answer; the tunnel has threads of its own.
        return left.kind != "ray" and left.has_unread

    def end(self, error: PulsarException) -> None:
        """End the link, because the actor will not come back.

        Its endpoints are refused, and every later request fails with `error`. The actor may be there all the
        same, if this process has left its Ray: it is told.
        """
        self._ended = error
        if (connection := self._drop()) is not None:
            _close_in_order(connection)
        try:
            for endpoint in list(self._endpoints.values()):
                endpoint.on_detached()
                endpoint.on_refused(error)
            self._replies.fail_all(error)
        finally:
            self._finish()

    def close(self) -> None:
        """Drop the carrier; the actor's session ends with it."""
        try:
            if (connection := self._drop()) is not None:
                connection.close()
        finally:
            self._finish()

    def _finish(self) -> None:
        with self._state:
            self._phase = Phase.OVER
        self._waiters.wake_all()

    def _drop(self) -> Connection | None:
        """Have no carrier from now on; returns that of before, to be closed."""
        with self._state:
            if self._phase is not Phase.OVER:
                self._phase = Phase.CLOSED
            connection, self._connection = self._connection, None
            self._state.notify_all()
        return connection


def _close_in_order(connection: Connection) -> None:
    def leave_and_close() -> None:
        with contextlib.suppress(PulsarException, OSError, RuntimeError):
            connection.send(encode_request(Leave("its process has left Ray")))
        connection.close()

    IoThread.get().call_soon(leave_and_close)
