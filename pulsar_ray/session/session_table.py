"""The clients that are attached to an actor.

Their sessions, their attachments, and how long a silent one is kept.

Pure state: the owner loop calls it with `now_ms`, carriers ask it whether a hello may come in. One session
belongs to one client process; it outlives its carrier for a grace period, so that a cut connection neither
redelivers nor gives up exclusivity.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pulsar_ray.errors import PulsarException, SessionLost, TooManyConnections

TOKEN_BYTES = 32
STOPPED_MS = 5000
"""Time after which a stopped client gives up its place to another.

Only a client that wants the place takes it.
"""


class Carrier(Protocol):
    """A lane or the Ray tunnel, which moves a session's packets at the moment."""

    @property
    def kind(self) -> str: ...

    def send(self, buffers: Sequence[Any]) -> None: ...

    def close(self, error: PulsarException | None = None) -> None: ...

    @property
    def unsent_bytes(self) -> int: ...

    async def drained(self) -> None:
        """Wait until few bytes are unsent, or the carrier has ended."""

    @property
    def is_peer_stopped(self) -> bool: ...

    def retain(self, count: int) -> None:
        """Count received bytes as kept; beyond the actor's budget the carrier is not read."""

    def release(self, count: int) -> None:
        """Give retained bytes back."""

    def hold_reading(self, *, held: bool) -> None:
        """Leave unread what the client sends, while `held`; harmless after the end."""


class Session:
    """One client process attached to this actor.

    `endpoints` are its producers, consumers or followers by their own ids.
    """

    __slots__ = (
        "attachment",
        "attempt",
        "calls",
        "carrier",
        "client_id",
        "endpoints",
        "heard_ms",
        "id",
        "is_ended",
        "lost_ms",
        "place",
        "send",
        "token",
        "was_heard",
    )

    def __init__(self, session_id: int, client_id: str, now_ms: int) -> None:
        self.id = session_id
        self.client_id = client_id
        self.attachment = 0
        self.attempt = 0
        self.token = b""
        self.place = ""
        """Of the client's process, if it said so: node and worker."""
        self.carrier: Carrier | None = None
        """Moves the packets; `carry_by` changes it."""
        self.send: Callable[[list[Any]], None] = _drop
        """Hands packets to the carrier.

        Without one they are dropped, because a re-attach repeats whatever is missing.
        """
        self.endpoints: dict[int, Any] = {}
        self.calls = 0
        """Control calls that are being answered."""
        self.heard_ms = now_ms
        self.was_heard = False
        """Since the last tick, which notes the time: no clock is read for every packet."""
        self.lost_ms: int | None = now_ms
        self.is_ended = False
        """The client will not come back to the session: nothing opens in it."""

    @property
    def is_stopped(self) -> bool:
        """Whether the client's process is stopped, as far as that can be seen from here."""
        return self.carrier is not None and self.carrier.is_peer_stopped

    def carry_by(self, carrier: Carrier | None) -> Carrier | None:
        """Let another carrier, or none, move the packets from now on; returns the one before."""
        before, self.carrier = self.carrier, carrier
        self.send = _drop if carrier is None else carrier.send
        return before


def _drop(_buffers: list[Any]) -> None:
    """Send nothing: there is no carrier."""


class SessionTable:
    """Sessions of one actor.

    `on_ended(session, crashed)` is called once for each that will not come back.
    """

    def __init__(
        self,
        on_ended: Callable[[Session, bool], None],
        *,
        grace_ms: int,
        lease_ms: int,
        first_id: int = 1,
        most: int = 1 << 31,
    ) -> None:
        self._sessions: dict[int, Session] = {}
        self._by_client: dict[str, Session] = {}
        self._on_ended = on_ended
        self._grace_ms = grace_ms
        self._lease_ms = lease_ms
        self._next_id = first_id
        self._most = most

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def attach(self, client_id: str, now_ms: int, attempt: int = 0) -> Session:
        """Begin a new attachment of this client's session.

        It has a higher number and a new token.

        The carrier it had before is closed.

        `attempt` rises with each of the client's. Raises SessionLost for one that comes after a later one:
        its client waits for it no more, and has got its token from that; TooManyConnections for one session
        too many.
        """
        session = self._by_client.get(client_id)
        if session is not None and attempt < session.attempt:
            raise SessionLost("a later attempt of the same client to attach has been answered")
        if session is None:
            self._check_room()
            session = Session(self._next_id, client_id, now_ms)
            self._next_id += 1
            self._sessions[session.id] = session
            self._by_client[client_id] = session
        session.attachment += 1
        session.attempt = attempt
        session.token = secrets.token_bytes(TOKEN_BYTES)
        session.heard_ms = now_ms
        session.lost_ms = now_ms
        if (carrier := session.carry_by(None)) is not None:
            carrier.close(SessionLost("a newer attachment of the same client took over"))
        return session

    def _check_room(self) -> None:
        if len(self._sessions) >= self._most:
            raise TooManyConnections(
                f"{self._most} processes are connected to this partition or subscription, and its process "
                "may not open files for more: use fewer processes or more partitions, or raise the limit "
                "(ulimit -Hn) where Ray is started"
            )

    def admit(self, session_id: int, token: bytes, attachment: int) -> Session:
        """The session a hello belongs to.

        Raises SessionLost for an unknown session, an old attachment or a wrong token.
        """
        session = self._sessions.get(session_id)
        if session is None or not hmac.compare_digest(session.token, token):
            raise SessionLost(f"session {session_id} is not known here with that token: attach again")
        if attachment != session.attachment:
            raise SessionLost(
                f"attachment {attachment} of session {session_id} is not the newest: attach again"
            )
        return session

    def carry(self, session: Session, carrier: Carrier, now_ms: int) -> None:
        """Let `carrier` move this session's packets from now on."""
        session.carry_by(carrier)
        session.lost_ms = None
        session.heard_ms = now_ms

    def lost(self, session: Session, carrier: Carrier, now_ms: int, *, peer_died: bool) -> None:
        """The carrier is gone.

        A dead peer ends the session at once, a lost lane starts its grace period.
        """
        if session.carrier is not carrier:
            return
        session.carry_by(None)
        session.lost_ms = now_ms
        if peer_died:
            self._end(session, crashed=True)

    def client_died(self, session_id: int) -> None:
        """The client's process is gone, whatever carried its session."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._end(session, crashed=True)

    def end(self, session: Session) -> None:
        """End the session of a client that leaves."""
        self._end(session, crashed=False)

    def end_stopped(self, holders: Sequence[Session], since_ms: int, now_ms: int) -> bool:
        """End the sessions of processes that were seen stopped since `since_ms`, after 5 s.

        True while it is worth to wait or to try again: all of them are stopped, or have ended.
        """
        present = [session for session in holders if not session.is_ended]
        if not all(session.is_stopped for session in present):
            return False
        if now_ms - since_ms >= STOPPED_MS:
            for session in present:
                self._end(session, crashed=True)
        return True

    def tick(self, now_ms: int) -> None:
        """End sessions whose grace or lease ran out."""
        for session in list(self._sessions.values()):
            if session.was_heard:
                session.was_heard = False
                session.heard_ms = now_ms
            grace_over = session.lost_ms is not None and now_ms - session.lost_ms > self._grace_ms
            if grace_over or now_ms - session.heard_ms > self._lease_ms:
                self._end(session, crashed=True)

    def _end(self, session: Session, *, crashed: bool) -> None:
        if self._sessions.pop(session.id, None) is None:
            return
        del self._by_client[session.client_id]
        session.is_ended = True
        if (carrier := session.carry_by(None)) is not None:
            carrier.close(SessionLost("the session has ended: attach again"))
        self._on_ended(session, crashed)
