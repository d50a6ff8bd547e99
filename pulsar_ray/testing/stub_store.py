"""One life of a store's process in this process, on a loop of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.stores.data_directory import StoreNode
from pulsar_ray.actors.stores.store_parts import OPEN_WAIT_S, StoreParts
from pulsar_ray.broker.figures.node_figures import NodeFigures
from pulsar_ray.broker.figures.overview import node_overview
from pulsar_ray.broker.figures.resting_note import read_resting_notes
from pulsar_ray.broker.serving.owner_loop import OwnerLoop
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotConnected, PulsarException
from pulsar_ray.testing.stub_actor import StubActor
from pulsar_ray.transport.actor_names import CONTROLLER, store_name

_MOST_LABELS = 10_000
_END_PATIENCE_S = 30.0


class ActorsBeside(Protocol):
    """Their system, as a store knows it."""

    data_dir: str

    def find(self, name: str) -> ActorHandle | None: ...

    def wait_ended(self, directory: str) -> None: ...

    def wait_all_ended(self) -> None: ...

    def lives(self) -> dict[str, StubActor]: ...

    def runs_on(self, name: str, node_id: str) -> bool: ...


class StubStore:
    """A store that asks actors for their figures. `kill` is a SIGKILL.

    Every node has its data directory at the same path, as the system says; here each is another directory.
    """

    def __init__(
        self, node_id: str, host: str, data_dir: Path, settings: Settings, system: ActorsBeside
    ) -> None:
        self.parts = StoreParts(
            data_dir,
            StoreNode(node_id, host, 1 << 40, "a stub cluster", "stub"),
            settings,
            find_peer=lambda node_id: system.find(store_name(node_id[:8])),
            find_controller=lambda: None if self.is_cut_off else system.find(CONTROLLER),
            end_process=lambda: threading.Thread(target=self.kill, name="end", daemon=True).start(),
        )
        self._node_id = node_id
        self._system = system
        self._owner = OwnerLoop(f"store {host}", on_fatal=_as_on_the_loop_of_ray)
        self._calls: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self.is_dead = False
        self.is_cut_off = False
        self._ended = threading.Event()
        with suppress(PulsarException):
            self.parts.directory.open(create=False, wait_s=OPEN_WAIT_S)

    def __repr__(self) -> str:
        return repr(self.parts.directory)

    @property
    def is_shipping(self) -> bool:
        """Whether what is stored here is shipped."""
        journal = self.parts.shipping.journal
        return journal is not None and journal.is_serving

    async def describe(self, make: bool = False) -> dict[str, Any]:
        """See StoreParts.describe; it ships from now on."""
        described = await self.parts.describe(make)
        self.parts.shipping.begin()
        return {**described, "path": self._system.data_dir}

    async def probe(self) -> int:
        """See StoreParts.probe; one whose process was started again is probed, and described no more."""
        pid = await self.parts.probe()
        self.parts.shipping.begin()
        return pid

    async def health(self) -> dict[str, Any]:
        """See StoreParts.health."""
        return await self.parts.health()

    async def stats(self) -> dict[str, Any]:
        """See StoreParts.stats."""
        return await self.parts.stats()

    async def remove(self, number: int) -> None:
        """See StoreParts.remove; the process that used the directory is gone before."""
        directory = str(self.parts.directory.ledgers / str(number))
        await asyncio.to_thread(self._system.wait_ended, directory)
        await self.parts.remove(number)

    async def call_part(self, part: str, method: str, *arguments: Any) -> Any:
        """See StoreParts.call_part; before a move fences, killed processes let their locks go."""
        if (part, method) == ("copies", "fence"):
            await asyncio.to_thread(self._system.wait_all_ended)
        return await self.parts.call_part(part, method, *arguments)

    async def overview(self, text: str, sort: str, limit: int, names: Sequence[str] | None) -> dict[str, Any]:
        """See the StoreActor's."""
        ledgers = self.parts.directory.ledgers
        figures = NodeFigures(self._node_id, _MOST_LABELS, _MOST_LABELS)
        for number, partition in await asyncio.to_thread(lambda: list(read_resting_notes(ledgers))):
            figures.rests(number, partition)
        for life, (name, actor) in enumerate(self._system.lives().items()):
            with suppress(PulsarException, asyncio.CancelledError):
                if actor.server is not None and self._system.runs_on(name, self._node_id):
                    report = await asyncio.wrap_future(actor.submit(actor.server.report))
                    figures.reported(dataclasses.replace(report, life=life))
        return node_overview(figures, text, sort, limit, names, SystemClock().now_ms())

    # --- a process ---------------------------------------------------------------------------------

    def start_call(self, method: str, arguments: Iterable[Any]) -> Future[Any]:
        """Start a Ray method of the store. Raises NotConnected once dead."""
        call: Callable[..., Any] = getattr(self, method)
        with self._lock:
            if self.is_dead:
                raise NotConnected(f"{self}: the store is restarting")
            future: Future[Any] = self._owner.submit(lambda: call(*arguments))
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def kill(self) -> None:
        """End at once: what is not shipped yet may be shipped never, or late."""
        with self._lock:
            if self.is_dead:
                return
            self.is_dead = True
        for call in list(self._calls):
            call.cancel()
        self._end_journal()
        # No thread may touch the directory when its next process does.
        with suppress(FutureTimeout):
            self._owner.submit(self._end_threads).result(_END_PATIENCE_S)
        self._end_journal()
        self._owner.stop()
        if (store := self.parts.directory.store) is not None:
            store.close()
        self._ended.set()

    def wait_ended(self) -> None:
        """Return when a dead store has let its directory go."""
        self._ended.wait(_END_PATIENCE_S)

    def _end_journal(self) -> None:
        shipping = self.parts.shipping
        journal, shipping.journal = shipping.journal, None
        if journal is not None:
            journal.stop(wait_s=0.0)
            journal._runner._threads.shutdown(wait=True)  # noqa: SLF001 - requests end with their process

    async def _end_threads(self) -> None:
        await asyncio.get_running_loop().shutdown_default_executor()


def _as_on_the_loop_of_ray(error: BaseException) -> None:
    """Go on: an error that nobody takes is logged there, and ends no process."""
