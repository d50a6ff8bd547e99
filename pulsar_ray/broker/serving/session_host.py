"""The front of a broker actor:

attaching, the two carriers, and the sessions they carry, all on the owner loop.

Above it a server (partition or dispatcher) sees sessions and typed requests and never knows which carrier is
at work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from pulsar_ray.broker.serving.tunnel_carrier import TunnelCarrier
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    Moved,
    PulsarException,
    ServiceUnitNotReady,
    SessionLost,
    TooManyLookupRequestException,
    UnsupportedVersionError,
)
from pulsar_ray.lane.handshake import HelloFields, LaneLimits, SessionDecision
from pulsar_ray.lane.serving.server import LaneServer
from pulsar_ray.lane.serving.server_lane import ServerLane
from pulsar_ray.session.packet import Packet
from pulsar_ray.session.requests import (
    PROTOCOL_VERSION,
    Done,
    Failed,
    Leave,
    MovedNotice,
    Ping,
    Pong,
    Request,
    check_request,
    decode_request,
    encode_request,
)
from pulsar_ray.session.session_table import Session, SessionTable

logger = logging.getLogger(__name__)

TICK_S = 1.0
MOST_CALLS = 1_000
"""Control calls of one session that are being answered."""
STOPPED_LOOK_S = 0.1
NOTICE_WAIT_S = 1.0
"""Time in which tunnels fetch the notice that their actor has gone to sleep."""
NOTICE_LOOK_S = 0.02


class SessionServer(Protocol):
    """The server behind a session host: a partition or a dispatcher."""

    def attach_details(self) -> dict[str, Any]: ...

    def on_request(self, session: Session, request: Request, body: memoryview) -> None: ...

    def on_session_ended(self, session: Session, crashed: bool) -> None: ...

    def end_deliveries(self, session: Session) -> bool:
        """Deliver nothing more to a session that has ended.

        Returns whether messages fail if its client has crashed.
        """

    def tick(self) -> None: ...


class SessionHost:
    """Sessions of one actor over lanes and the tunnel."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lane_directory: Path,
        node_address: str,
        settings: Settings,
        clock: Clock,
        first_session_id: int,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._settings = settings
        self._server: SessionServer | None = None
        budget = settings.lane_buffer_budget_bytes
        self.lanes = LaneServer(
            loop,
            lane_directory,
            node_address=node_address,
            token_check=self._check_token,
            handler=self,
            limits=LaneLimits(received_bytes=budget, lane_received_bytes=budget // 2),
        )
        self.sessions = SessionTable(
            self._session_ended,
            grace_ms=int(settings.reattach_grace_seconds * 1000),
            lease_ms=int(settings.session_lease_seconds * 1000),
            first_id=first_session_id,
            most=self.lanes.connection_limits.proven,
        )
        self._ticker: asyncio.TimerHandle | None = None
        self._stays: dict[int, asyncio.Future[None]] = {}
        self._tasks = 0
        self._asked: set[asyncio.Future[None]] = set()
        """Of sessions that have ended, until it is known how."""
        self.ended_in_order: Callable[[str], Awaitable[bool]] | None = None
        """Finds out whether a process was ended on purpose, where that can be known."""

    def serve(self, server: SessionServer) -> None:
        """From now on requests go to `server`."""
        self._server = server
        self._ticker = self._loop.call_later(TICK_S, self._tick)

    async def start(self) -> None:
        """Open the Unix socket."""
        await self.lanes.start()

    # --- attaching --------------------------------------------------------------------------------

    async def attach(
        self, client_id: str, protocol_version: int, want_tcp: bool, attempt: int, place: str = ""
    ) -> dict[str, Any]:
        """A new attachment: session, token and addresses. Raises UnsupportedVersionError, or what the server
        refuses with. `place` is that of the client's process, as `ended_in_order` is asked for it.
        """
        if protocol_version != PROTOCOL_VERSION:
            raise UnsupportedVersionError(
                f"the client speaks protocol {protocol_version}, the broker {PROTOCOL_VERSION}: "
                "install the same pulsar-ray everywhere, then `pulsar-ray stop` and `pulsar-ray start`"
            )
        server = self._server
        if server is None:
            raise ServiceUnitNotReady("the actor is starting")
        details = server.attach_details()
        if want_tcp:
            first, last = self._settings.tcp_ports()
            await self.lanes.listen_tcp(range(first, last + 1) if first else None)
        session = self.sessions.attach(client_id, self._clock.monotonic_ms(), attempt)
        session.place = place
        unix, tcp = self.lanes.unix_address, self.lanes.tcp_address
        return {
            "session_id": session.id,
            "attachment": session.attachment,
            "token": session.token,
            "epoch": details.pop("epoch"),
            "unix_path": unix.path if unix is not None else None,
            "tcp_address": (tcp.host, tcp.port) if tcp is not None else None,
            "reach": details.pop("reach"),
            "directory": details.pop("directory"),
            "protocol_version": PROTOCOL_VERSION,
            "details": details,
            "host": socket.gethostname(),
        }

    # --- lanes ------------------------------------------------------------------------------------

    def _check_token(self, hello: HelloFields) -> SessionDecision:
        return SessionDecision(self.sessions.admit(hello.session_id, hello.token, hello.attachment_number))

    def on_open(self, lane: ServerLane, hello: HelloFields) -> None:
        """A lane was let in."""
        self.sessions.carry(lane.session, lane, self._clock.monotonic_ms())

    def on_packets(self, lane: ServerLane, packets: list[Packet]) -> None:
        """Packets of a lane; late ones of a replaced attachment are dropped."""
        session: Session = lane.session
        if session.carrier is lane:
            self.receive(session, packets)

    def on_closed(self, lane: ServerLane, peer_died: bool) -> None:
        """A lane ended."""
        self.sessions.lost(lane.session, lane, self._clock.monotonic_ms(), peer_died=peer_died)

    # --- the Ray carrier --------------------------------------------------------------------------

    async def exchange(
        self,
        session_id: int,
        attachment: int,
        token: bytes,
        last_received: int,
        packets: Callable[[], Sequence[tuple[int, Any]]],
    ) -> tuple[int, list[tuple[int, bytes]]]:
        """One tunnel call: packets up at once, packets down as soon as there are any.

        `packets` gives those that came up; it is asked once the token is found to be right.
        """
        session = self.sessions.admit(session_id, token, attachment)
        carrier = session.carrier
        if not isinstance(carrier, TunnelCarrier):
            carrier = TunnelCarrier(self._loop)
            self.sessions.carry(session, carrier, self._clock.monotonic_ms())
        return await carrier.exchange(
            last_received, packets(), lambda received: self.receive(session, received)
        )

    async def stay(self, session_id: int, attachment: int, token: bytes) -> None:
        """Wait until the session ends, or its client comes with a newer attachment."""
        self.sessions.admit(session_id, token, attachment)
        self._end_stay(session_id)
        self._stays[session_id] = ended = self._loop.create_future()
        await asyncio.wait((ended,))

    def _end_stay(self, session_id: int) -> None:
        ended = self._stays.pop(session_id, None)
        if ended is not None and not ended.done():
            ended.set_result(None)

    async def client_died(self, session_id: int) -> None:
        """The client's process is gone."""
        self.sessions.client_died(session_id)

    async def outlast(self, holders: Sequence[Session]) -> bool:
        """Wait until stopped or ended processes have lost what they hold and others want.

        False if all have a session, and one of them runs, or goes on: then it keeps what it holds.
        """
        since_ms = self._clock.monotonic_ms()
        if any(session.is_ended for session in holders):
            await self.know_how_ended()
            return True
        while holders and self.sessions.end_stopped(holders, since_ms, self._clock.monotonic_ms()):
            if all(session.is_ended for session in holders):
                await self.know_how_ended()
                return True
            await asyncio.sleep(STOPPED_LOOK_S)
        return False

    async def know_how_ended(self) -> None:
        """Wait until sessions that have ended have given up what they held."""
        if self._asked:
            await asyncio.wait(self._asked)

    # --- requests ---------------------------------------------------------------------------------

    def receive(self, session: Session, packets: list[Packet]) -> None:
        """Hand packets to the server.

        A PulsarException closes the carrier: the client attaches again and resends.
        """
        server = self._server
        assert server is not None
        session.was_heard = True
        for packet in packets:
            request = decode_request(packet)
            check_request(request)
            if type(request) is Ping:
                session.send(encode_request(Pong(request.number)))
            elif type(request) is Leave:
                self.sessions.end(session)
                return
            else:
                server.on_request(session, request, packet.body)

    def answer_call(
        self, session: Session, request_id: int, work: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        """As `answer`; a session with too many calls under way is refused."""
        if session.calls >= MOST_CALLS:
            error = TooManyLookupRequestException(
                f"{MOST_CALLS} calls of this client are under way here: wait for some of them"
            )
            session.send(encode_request(Failed(request_id, type(error).__name__, error.text, error.details)))
            return

        async def run() -> Any:
            try:
                return await work(*arguments)
            finally:
                session.calls -= 1

        session.calls += 1
        self.answer(session, request_id, run)

    def answer(
        self, session: Session, request_id: int, work: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> None:
        """Await `work(*arguments)` on the loop and answer with its value or its typed error."""

        async def run() -> None:
            try:
                # Called here: a loop that ends before this runs would leave a coroutine nobody awaits.
                reply: Request = Done(request_id, await work(*arguments))
            except PulsarException as error:
                reply = Failed(request_id, type(error).__name__, error.text, error.details)
            session.send(encode_request(reply))

        self.spawn(run())

    def spawn(self, work: Coroutine[Any, Any, None], *, is_work: bool = True) -> None:
        """Run on the loop; what it raises is a defect and ends the process.

        With `is_work` the actor does not go to sleep meanwhile.
        """
        task = self._loop.create_task(work)
        task.add_done_callback(self._raise_uncaught)
        if is_work:
            self._tasks += 1
            task.add_done_callback(self._work_ended)

    @property
    def is_working(self) -> bool:
        """Whether requests are being answered, or other work goes on."""
        return self._tasks > 0

    def _work_ended(self, _: asyncio.Task[None]) -> None:
        self._tasks -= 1

    def _raise_uncaught(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a control call failed", "exception": error})

    def _session_ended(self, session: Session, crashed: bool) -> None:
        self._end_stay(session.id)
        server = self._server
        if server is None:
            return
        can_ask = crashed and session.place and self.ended_in_order is not None
        if can_ask and server.end_deliveries(session):
            self._asked.add(answered := self._loop.create_future())
            self.spawn(self._ended_somehow(session, answered))
        else:
            server.on_session_ended(session, crashed)

    async def _ended_somehow(self, session: Session, answered: asyncio.Future[None]) -> None:
        """End a session whose messages in hand fail, unless its process was ended on purpose."""
        assert self.ended_in_order is not None
        assert self._server is not None
        in_order = await self.ended_in_order(session.place)
        self._server.on_session_ended(session, not in_order)
        self._asked.discard(answered)
        answered.set_result(None)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self.sessions.tick(self._clock.monotonic_ms())
        if self._server is not None:
            self._server.tick()

    @property
    def clients(self) -> int:
        """The number of sessions in which something is open."""
        return sum(bool(session.endpoints) for session in self.sessions)

    def retire(self) -> None:
        """Refuse every attach with Moved from now on, and every packet.

        Clients are sent that their actor has gone to sleep. Nothing of what they hold is given to others, as
        it would be if their sessions ended.
        """
        self._server = _Asleep()
        for session in self.sessions:
            session.send(encode_request(MovedNotice("it went to sleep", is_asleep=True)))

    async def let_go(self) -> None:
        """Close every carrier after `retire`, once the notice is on its way."""
        carriers = [session.carrier for session in self.sessions]
        tunnels = [carrier for carrier in carriers if isinstance(carrier, TunnelCarrier)]
        deadline = self._loop.time() + NOTICE_WAIT_S
        while tunnels and self._loop.time() < deadline:
            tunnels = [tunnel for tunnel in tunnels if tunnel.has_waiting]
            # The last answer also needs a moment until it is out of this process.
            await asyncio.sleep(NOTICE_LOOK_S)
        await self.close()

    def describe(self) -> list[dict[str, Any]]:
        """Each session's client and carrier, for stats."""
        return [
            {"clientId": s.client_id, "carrier": s.carrier.kind if s.carrier is not None else "none"}
            for s in self.sessions
        ]

    async def close(self) -> None:
        """Close every carrier; clients attach again."""
        if self._ticker is not None:
            self._ticker.cancel()
        for session in self.sessions:
            if session.carrier is not None:
                session.carrier.close(SessionLost("the actor is stopping"))
        await self.lanes.close()


class _Asleep:
    """The server of an actor that goes to sleep: it takes nothing any more."""

    def attach_details(self) -> dict[str, Any]:
        raise Moved("the actor has gone to sleep: resolve its topic again")

    def on_request(self, session: Session, request: Request, body: memoryview) -> None:
        """Drop a packet: its client repeats it where it attaches next."""

    def on_session_ended(self, session: Session, crashed: bool) -> None:
        """Keep what the session's client holds."""

    def end_deliveries(self, session: Session) -> bool:
        """Nothing fails any more."""
        return False

    def tick(self) -> None:
        """Do nothing."""
