"""A broker without Ray has the real controller, which tests end and begin anew."""

from __future__ import annotations

import asyncio
import pickle
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pulsar_ray.actors.control_plane import ControlPlane
from pulsar_ray.actors.controller import Controller
from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.broker.serving.owner_loop import OwnerLoop
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotConnected, PulsarException, Timeout
from pulsar_ray.managed_ledger.store.store_identity import read_identity
from pulsar_ray.testing.stub_actors import StubActors

T = TypeVar("T")
CONTROLLER_S = 30.0
_END_S = 5.0


class _OwnController:
    """An OwnActor."""

    def __init__(self, node_id: str, *, was_restarted: bool, on_end: Callable[[], None]) -> None:
        self.node_id = node_id
        self.was_restarted = was_restarted
        self._on_end = on_end

    def begin(self, component: str, settings: Settings) -> None:
        """Do nothing: this process is the test's."""

    def call(self, method: str) -> None:
        """Do nothing: the cluster asks by itself."""

    def report(self, settings: Settings, gather: Callable[[], Awaitable[ActorReport]]) -> None:
        """Report nothing."""

    def end(self, *, for_good: bool) -> None:
        """Have another one begin, as Ray would, or a store where it was deposed."""
        del for_good
        self._on_end()

    async def owner_died(self, call: Any) -> bool:
        """Wait for a client's end, which comes with that of the cluster."""
        await asyncio.get_running_loop().create_future()
        return False


class StubController:
    """Runs one life of the controller after the other, on a loop of its own."""

    def __init__(self, actors: StubActors, order: CatalogOrder, settings: Settings) -> None:
        self.answers_to_lose = 0
        self._actors = actors
        self._settings = settings
        self._owner = OwnerLoop("controller", on_fatal=actors.fatal_errors.append)
        self._is_down = False
        self._restarting: asyncio.Task[None] | None = None
        self._order = order
        self._life = self._new_life(was_restarted=False)
        self.run(self._life.ready())

    def _new_life(self, *, was_restarted: bool) -> Controller:
        def ended() -> None:
            if life is self._life and not self._is_down:
                self._restarting = asyncio.get_running_loop().create_task(self._restart(begins=True))

        own = partial(_OwnController, self._order.node_id, was_restarted=was_restarted, on_end=ended)
        life = Controller(self._actors.data_dir, self._settings, self._order, self._actors, own)
        return life

    @property
    def node_id(self) -> str:
        """The node of the controller, or of the last one."""
        return self._order.node_id

    def look(self, at: Callable[[ControlPlane], T]) -> T:
        """The result of a look at the running controller's parts."""

        async def look() -> T:
            return at(await self._life.serving())

        return self.run(look())

    def do(self, act: Callable[[ControlPlane], Awaitable[T]]) -> T:
        """The result of an act of the running controller's parts."""

        async def do() -> T:
            return await act(await self._life.serving())

        return self.run(do())

    def ask(self, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """Make one call of the controller's present process; what crosses is a copy."""
        copies = pickle.loads(pickle.dumps(arguments))

        async def call() -> Any:
            if self._is_down:
                raise NotConnected("the controller is restarting")
            return await getattr(self._life, method)(*copies)

        answer = self.run(call(), timeout_s)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise NotConnected("the controller died before it answered")
        return pickle.loads(pickle.dumps(answer))

    def run(self, call: Coroutine[Any, Any, T], timeout_s: float = CONTROLLER_S) -> T:
        """Carry a call out on the controller's loop."""
        future = asyncio.run_coroutine_threadsafe(call, self._owner.loop)
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise NotConnected("the controller has ended") from None
        except FutureTimeout:
            if future.done():
                raise
            raise Timeout(f"the controller does not answer within {timeout_s} s") from None

    def kill(self, *, begins: bool) -> None:
        """End it in the middle of what it does; another one takes its place.

        Unless it `begins`, it waits until somebody asks for something.
        """

        self.run(self._restart(begins=begins))

    async def _restart(self, *, begins: bool) -> None:
        await self._begin_anew(self._order, self._actors.data_dir, was_restarted=True)
        if begins:
            with suppress(PulsarException):  # a later call has it try again
                await self._life.ready()

    def begin_on(self, node_id: str, place: Path) -> None:
        """Begin another one on the node of this store; it recovers the catalog."""
        identity = read_identity(place)
        assert identity is not None
        order = CatalogOrder(node_id, "recover", identity.cluster_id, str(uuid.uuid4()), False)

        async def begin() -> None:
            await self._begin_anew(order, str(place), was_restarted=False)
            await self._life.ready()

        self.run(begin())

    def lose(self) -> None:
        """Its node is lost: it answers nothing until another one begins."""
        self.run(self._end())

    def close(self) -> None:
        """End it for good."""

        async def close() -> None:
            await self._end()
            await asyncio.get_running_loop().shutdown_default_executor()

        self.run(close())
        self._owner.stop()

    async def _begin_anew(self, order: CatalogOrder, data_dir: str, *, was_restarted: bool) -> None:
        await self._end()
        self._order, self._actors.data_dir = order, data_dir
        self._life = self._new_life(was_restarted=was_restarted)
        self._is_down = False

    async def _end(self) -> None:
        self._is_down = True
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)
        if (plane := self._life._plane) is not None:  # noqa: SLF001
            plane.catalog.close()
