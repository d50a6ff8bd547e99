"""A life's decisions are carried out here, on an event loop, with an object store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from pulsar_ray.errors import PulsarException, RemoteStoreRefused, ServiceUnitNotReady
from pulsar_ray.journal.requests import (
    UNKNOWN,
    Create,
    Delete,
    Get,
    ListKeys,
    Shipped,
    Task,
    Wait,
)
from pulsar_ray.journal.storage.object_store import ObjectStore, carry_out
from pulsar_ray.journal.store_life import Deposed, Serve, StoreLife

logger = logging.getLogger(__name__)

T = TypeVar("T")
LOOK_SECONDS = 10.0
OBJECTS_OF_A_CHECKPOINT = 256
BYTES_OF_A_CHECKPOINT = 128 * 1024 * 1024
"""A reader of the journal has to keep so much behind an index in memory."""
MORE_THREADS = 4
"""Beside those that write objects, for reading and deleting."""


class LifeRunner:
    """Runs one life of a store, on one event loop for all of its methods.

    `act` is told what may be served, and that the life is over. A request whose fate is unknown, or that is
    refused, is repeated for as long as it takes; whoever counts the requests knows why. `problem` tells what
    ended and should not have.
    """

    def __init__(
        self,
        life: StoreLife,
        store: ObjectStore,
        act: Callable[[Serve | Deposed], None],
        checkpoint_objects: int = OBJECTS_OF_A_CHECKPOINT,
    ) -> None:
        self.life = life
        self._failures: dict[str, str] = {}
        self._refusal = ""
        self._store, self._act = store, act
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(life.shipping.cut.under_way + MORE_THREADS, "journal")
        self._running: set[asyncio.Task[Any]] = set()
        self._unshipped: dict[asyncio.Future[None], int] = {}
        """The turns that tasks wait for."""
        self._next_object: asyncio.TimerHandle | None = None
        self._checkpoint_objects = checkpoint_objects
        self._objects_before = self._bytes_before = 0
        """So much was shipped at the last checkpoint."""
        self._is_ended = False
        self.on_advance: Callable[[], None] = lambda: None
        """Called whenever more may be shipped, or served, than before."""

    def start(self) -> None:
        """Close the former life, compare, ship, and look at times whether this is over."""
        self._advance()
        self.begin(self._live(), "life")

    def nudge(self) -> None:
        """Do what is due now, because more was told."""
        self._advance()

    async def run(self, task: Task[T]) -> T:
        """Run a task of this life, `adopt` for example, and return its result.

        Raises what it raises, for example JournalDamaged, and ServiceUnitNotReady if this life ends before.
        """
        answer: Any = None
        while True:
            try:
                request = task.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._advance()
            answer = await self._answer(request)

    def end(self) -> None:
        """Stop at once; what is under way may still arrive in the store."""
        self._is_ended = True
        for waiting in filter(_is_awaited, self._unshipped):
            waiting.set_exception(
                ServiceUnitNotReady(f"a life of store {self.life.store} is over: ask again")
            )
        self._unshipped.clear()
        for task in self._running:
            task.cancel()
        if self._next_object is not None:
            self._next_object.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def problem(self) -> str:
        """Why something has ended and should go on; "" if nothing has."""
        return next(iter(tuple(self._failures.values())), "")

    def begin(self, work: Any, name: str = "") -> asyncio.Task[Any]:
        """Run a coroutine of this life in the background; an error is the `problem`.

        It stays one until work of the same name ends well; of work without a name, for ever.
        """
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(partial(self._note_end, name))
        return task

    def _note_end(self, name: str, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if self._is_ended or task.cancelled():
            return
        if (error := task.exception()) is None:
            if name and task.result() is not False:
                self._failures.pop(name, None)
            return
        failure = f"{type(error).__name__}: {error}"
        if self._failures.get(name) != failure:
            self._failures[name] = failure
            logger.error("the journal of %s stands still: %s", self.life.store, failure, exc_info=error)

    async def _live(self) -> None:
        await self.run(self.life.start())
        while not self.life.shipping.is_deposed:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.wait([self.begin(self.run(self.life.look()), "look")])

    def _advance(self) -> None:
        """Do what the life has decided."""
        if self._is_ended:
            return
        tasks, actions = self.life.advance(self._loop.time())
        for task in tasks:
            self.begin(self.run(task))
        for action in actions:
            self._act(action)
        for waiting in [each for each, turn in self._unshipped.items() if turn <= self.life.shipping.shipped]:
            del self._unshipped[waiting]
            if _is_awaited(waiting):
                waiting.set_result(None)
        shipping = self.life.shipping
        objects, size = (
            shipping.prefix - self._objects_before,
            shipping.shipped_bytes - self._bytes_before,
        )
        if self.life.is_ready and (objects >= self._checkpoint_objects or size >= BYTES_OF_A_CHECKPOINT):
            self._objects_before, self._bytes_before = shipping.prefix, shipping.shipped_bytes
            self.begin(self.run(self.life.checkpoint()), "checkpoint")
        self._wait_for_next_object()
        self.on_advance()

    def _wait_for_next_object(self) -> None:
        if self._next_object is not None:
            self._next_object.cancel()
            self._next_object = None
        due_s = self.life.shipping.due_seconds(self._loop.time(), self.life.is_awaited)
        if due_s is not None and not self.life.shipping.is_deposed:
            self._next_object = self._loop.call_later(due_s, self._advance)

    async def _answer(self, request: Any) -> Any:
        if isinstance(request, Wait):
            await asyncio.sleep(request.seconds)
            return None
        if isinstance(request, Shipped):
            return await self._shipped(request.turn)
        if isinstance(request, Delete) and not request.is_awaited:
            self.begin(self._carry_out(request))
            return None
        return await self._carry_out(request)

    async def _shipped(self, turn: int) -> None:
        if self.life.shipping.shipped < turn:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._unshipped[waiting] = turn
            await waiting

    async def _carry_out(self, request: Create | Get | ListKeys | Delete) -> Any:
        try:
            answer = await self._on_thread(partial(carry_out, self._store, request))
        except RemoteStoreRefused as refusal:
            # Rights may be given again: all that waits for them goes on then.
            self._report(refusal)
            return UNKNOWN
        if answer is not UNKNOWN:
            self._refusal = ""
        return answer

    async def _on_thread(self, call: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._threads, call)

    def _report(self, refusal: PulsarException) -> None:
        if self._refusal != str(refusal):
            self._refusal = str(refusal)
            logger.warning("the journal of %s waits: %s", self.life.store, refusal)


def _is_awaited(waiting: asyncio.Future[None]) -> bool:
    """Return whether nobody has given up this wait."""
    return not waiting.done()
