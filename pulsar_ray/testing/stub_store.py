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
from pulsar_ray.actors.stores.held_store import OPEN_WAIT_S, StoreNode
from pulsar_ray.actors.stores.shipping_store import ShippingStore
from pulsar_ray.broker.figures.node_figures import NodeFigures
from pulsar_ray.broker.figures.overview import node_overview
from pulsar_ray.broker.figures.resting_note import read_resting_notes
from pulsar_ray.broker.serving.owner_loop import OwnerLoop
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotConnected, PulsarException
from pulsar_ray.moving.moved_files import FinalFiles
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


class StubStore(ShippingStore):
    """A store that asks actors for their figures. `kill` is a SIGKILL.

    Every node has its data directory at the same path, as the system says; here each is another directory.
    """

    def __init__(
        self, node_id: str, host: str, data_dir: Path, settings: Settings, system: ActorsBeside
    ) -> None:
        super().__init__(data_dir, StoreNode(node_id, host, 1 << 40, "a stub cluster", "stub"), settings)
        self._system = system
        self._owner = OwnerLoop(f"store {host}", on_fatal=_as_on_the_loop_of_ray)
        self._calls: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self.is_dead = False
        self.is_cut_off = False
        self._ended = threading.Event()
        with suppress(PulsarException):
            self._open(create=False, wait_s=OPEN_WAIT_S)

    @property
    def is_shipping(self) -> bool:
        """Whether what is stored here is shipped."""
        return self._journal is not None and self._journal.is_serving

    async def describe(self) -> dict[str, Any]:
        """See HeldStore.describe; it ships from now on."""
        described = await super().describe()
        self._begin_journal()
        return {**described, "path": self._system.data_dir}

    async def probe(self) -> int:
        """See HeldStore.probe; one whose process was started again is probed, and described no more."""
        pid = await super().probe()
        self._begin_journal()
        return pid

    def _peer(self, node_id: str) -> ActorHandle | None:
        return self._system.find(store_name(node_id[:8]))

    def _controller(self) -> ActorHandle | None:
        return None if self.is_cut_off else self._system.find(CONTROLLER)

    def _end_process(self) -> None:
        threading.Thread(target=self.kill, name="end", daemon=True).start()

    async def remove(self, number: int) -> None:
        """See HeldStore.remove; the process that used the directory is gone before."""
        await asyncio.to_thread(self._system.wait_ended, str(self._ledgers / str(number)))
        await super().remove(number)

    async def move_fence(self, number: int, move_id: str) -> FinalFiles | None:
        """See MovingStore.move_fence; no process that was killed holds a lock any more."""
        await asyncio.to_thread(self._system.wait_all_ended)
        return await super().move_fence(number, move_id)

    async def overview(self, text: str, sort: str, limit: int, names: Sequence[str] | None) -> dict[str, Any]:
        """See the StoreActor's."""
        figures = NodeFigures(self._node.node_id, _MOST_LABELS, _MOST_LABELS)
        for number, partition in await asyncio.to_thread(lambda: list(read_resting_notes(self._ledgers))):
            figures.rests(number, partition)
        for life, (name, actor) in enumerate(self._system.lives().items()):
            with suppress(PulsarException, asyncio.CancelledError):
                if actor.server is not None and self._system.runs_on(name, self._node.node_id):
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
        if self._store is not None:
            self._store.close()
        self._ended.set()

    def wait_ended(self) -> None:
        """Return when a dead store has let its directory go."""
        self._ended.wait(_END_PATIENCE_S)

    def _end_journal(self) -> None:
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.stop(wait_s=0.0)
            journal._runner._threads.shutdown(wait=True)  # noqa: SLF001 - requests end with their process

    async def _end_threads(self) -> None:
        await asyncio.get_running_loop().shutdown_default_executor()


def _as_on_the_loop_of_ray(error: BaseException) -> None:
    """Go on: an error that nobody takes is logged there, and ends no process."""
