"""Starts what an actor of sessions serves, guards its calls, and lets it fall asleep.

Nothing here knows of Ray: an actor of a stub cluster has the same.

An actor whose start failed for a reason that a restart would not mend comes up all the same and answers every
call with the typed error; dying would only make Ray restart it for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from pulsar_ray.broker.serving.failed_starts import may_start_again
from pulsar_ray.broker.serving.owner_loop import OwnerLoop
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.sleeper import Idle, Retired, Sleeper, SleepingServer
from pulsar_ray.clock import Clock
from pulsar_ray.errors import Moved, PulsarException, TopicNotFound
from pulsar_ray.model.policies import PolicyUpdate

logger = logging.getLogger(__name__)

T = TypeVar("T")

ASK_AGAIN_S = 1.0
RETIRED_S = 10.0
"""A retired actor that the controller does not kill in this time ends itself."""
UNUSED_MS = 1 << 40
"""For how long an actor has been idle that cannot serve."""


class ActorServer(SleepingServer, Protocol):
    """Serves the sessions of an actor once it has started."""

    async def apply_policies(self, update: PolicyUpdate) -> None: ...


class ActorBody:
    """Holds the server of one actor and all that calls go through before it.

    `start` lets the server serve; `report_idle` is told when nobody uses it; `end_process` ends the process
    with an exit code, maybe later.
    """

    def __init__(
        self,
        label: str,
        owner: OwnerLoop,
        host: SessionHost,
        in_force: PoliciesInForce,
        clock: Clock,
        *,
        start: Callable[[], Awaitable[ActorServer]],
        report_idle: Callable[[Idle], None],
        end_process: Callable[[int], object],
        refusal: PulsarException | None = None,
    ) -> None:
        self.refusal = refusal
        """Why the actor can never serve."""
        self.sleeper: Sleeper | None = None
        self.starting: Future[None]
        self._label = label
        self._owner = owner
        self._host = host
        self._in_force = in_force
        self._clock = clock
        self._start = start
        self._report_idle = report_idle
        self._end_process = end_process
        self._server: ActorServer | None = None

    # --- starting ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start on the owner loop.

        Calls wait for it, and try again if it failed for a reason that may pass.
        """
        self.starting = self._owner.submit(self._start_or_refuse)

    async def _start_or_refuse(self) -> None:
        if self.refusal is not None:
            return
        try:
            server = await self._start()
        except PulsarException as error:
            if may_start_again(error):
                raise
            logger.error("cannot serve: %s", error)
            self.refusal = error
            return
        self._server = server
        seconds = self._in_force.settings.idle_actor_passivation_seconds
        self.sleeper = Sleeper(server, self._host, self._clock, self._owner.loop, seconds, self._report_idle)

    @property
    def has_started(self) -> bool:
        """Whether the server serves, or has served."""
        return self._server is not None

    @property
    def start_error(self) -> BaseException | None:
        """The error of a start that failed and is tried again."""
        has_ended = self.starting.done() and not self.starting.cancelled()
        return self.starting.exception() if has_ended else None

    async def serving(self) -> SessionHost:
        """The host, once this actor serves. Raises what its start was refused with."""
        if self.start_error is not None:
            # Nothing that is so for good is raised there: a disk that was full may have room by now, a
            # partition that did not answer may be back.
            self.begin()
        await asyncio.shield(asyncio.wrap_future(self.starting))
        if self.refusal is not None:
            raise self.refusal.again()
        return self._host

    # --- calls ------------------------------------------------------------------------------------

    async def guarded(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Await `work` on the owner loop. Raises the refusal, and Moved once asleep."""
        if self.refusal is not None:
            raise self.refusal.again()

        async def run() -> Any:
            # Looked at on the loop on which it leaves, in the turn in which the work begins.
            if self.sleeper is not None and self.sleeper.has_left:
                raise Moved(f"{self._label} has gone to sleep: resolve its topic again")
            return await work()

        return await self._owner.run(run)

    async def attach(
        self, client_id: str, protocol_version: int, want_tcp: bool, attempt: int, place: str = ""
    ) -> dict[str, Any]:
        """See SessionHost.attach."""

        async def run() -> dict[str, Any]:
            host = await self.serving()
            return await host.attach(client_id, protocol_version, want_tcp, attempt, place)

        reply: dict[str, Any] = await self.guarded(run)
        return reply

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """Let policies of the topic hold from now on.

        One that starts heeds them once it serves. A late or repeated update changes nothing.
        """

        async def run() -> None:
            if self._server is None:
                self._in_force.take(update)
            else:
                await self._server.apply_policies(update)

        await self.guarded(run)

    # --- sleeping ---------------------------------------------------------------------------------

    async def idle(self) -> Idle | None:
        """Answer for how long nobody has used this actor; None while it starts."""

        async def look() -> Idle | None:
            return None if self.sleeper is None else self.sleeper.idle()

        if self.refusal is not None:
            return Idle(UNUSED_MS, 0, can_park=True)
        return await self._owner.run(look)

    async def retire(self, least_idle_ms: int, with_clients: bool) -> Retired | None:
        """See Sleeper.retire. Once this has answered, the process may be killed and nothing is lost.

        Should nobody kill it, it ends by itself: Ray starts it again, and it is idle again.
        """
        if self.refusal is not None:
            return Retired()

        async def run() -> Retired | None:
            if self.sleeper is None:
                return None
            retired = await self.sleeper.retire(least_idle_ms, with_clients=with_clients)
            if retired is not None:
                self._owner.loop.call_later(RETIRED_S, self._end_process, 0)
            return retired

        try:
            return await self._owner.run(run)
        except Exception as error:
            # Half of it is closed: as after any crash, the next process sorts it out.
            logger.critical("could not go to sleep: %s", error)
            self._end_process(71)
            raise


def learn_policies(
    ask: Callable[[], PolicyUpdate], apply: Callable[[PolicyUpdate], object], wait: Callable[[float], object]
) -> None:
    """Ask the controller until it answers for the policies of a restarted actor.

    They are applied then. Those that it was created with may have changed since. It blocks. `wait` is called
    with seconds between two tries, and says with something true that the process has ended.
    """
    try:
        update = ask_until_answered(ask, wait, "its policies")
    except TopicNotFound:
        return  # the controller ends this actor
    if update is None:
        return
    try:
        apply(update)
    except PulsarException as error:
        logger.error("cannot heed its policies: %s", error)


def ask_until_answered(ask: Callable[[], T], wait: Callable[[float], object], what: str) -> T | None:
    """Ask the controller until it answers, and return that; None if the process ends before.

    It blocks, as `learn_policies` does. Raises TopicNotFound.
    """
    while True:
        try:
            return ask()
        except TopicNotFound:
            raise
        except PulsarException as error:
            logger.warning("%s: the controller does not answer yet: %s", what, error)
            if wait(ASK_AGAIN_S):
                return None
