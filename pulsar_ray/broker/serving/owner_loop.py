"""The event loop that owns an actor's state, and the thread that touches its disk.

Ray methods run on Ray's own loops: they hand a call over and await the reply. Nothing on the owner loop
blocks on a disk, but for a lone small write to one that has been quick (ADR 0009).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from pulsar_ray.kernel_calls import pidfd_open
from pulsar_ray.lane.serving.server import raise_file_limit

logger = logging.getLogger(__name__)
T = TypeVar("T")

# A thread that computes in Python keeps the GIL for one switch interval each time the owner loop wants it
# back; the default
# of 5 ms would be most of a durable send.
SWITCH_INTERVAL_S = 0.0001
# A broker keeps many small objects for long and makes no cycles on its data path: looking through them often
# is wasted.
GC_THRESHOLDS = (50_000, 20, 50)
_END_PATIENCE_S = 5.0
"""Tasks that a stopped loop cancels have so long to end."""
_RAYLET_PID = "RAY_RAYLET_PID"
"""Ray tells its workers by this variable."""
_EXIT_CODE = 72
_LOW_PRIORITY = 10


class OwnerLoop:
    """A uvloop in its own thread, or a running one that is taken over.

    An uncaught exception on it ends the process: half-alive is worse than dead.
    """

    def __init__(
        self,
        name: str,
        on_fatal: Callable[[BaseException], None] | None = None,
        running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None,
    ) -> None:
        self._on_fatal = on_fatal or _exit_process
        self._is_stopping = False
        if running is not None and isinstance(running[0], uvloop.Loop):
            self.loop, self._thread = running
            take_normal_priority(self._thread)
            self.loop.call_soon_threadsafe(self.loop.set_exception_handler, self._uncaught)
            return
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(self._uncaught)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self._end_tasks()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        with contextlib.suppress(OSError):  # EBUSY while a connection that just came is not set up yet
            self.loop.close()

    def _end_tasks(self) -> None:
        """End tasks that still run.

        Left to a garbage collection they would clean up on a closed loop.
        """
        if tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=_END_PATIENCE_S))

    def _uncaught(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        # A transport that reads its end while its loop closes fails on that.
        is_harmless = self._is_stopping or isinstance(error, (ConnectionError, asyncio.CancelledError))
        if error is None or is_harmless:
            logger.debug("owner loop: %s", context.get("message"))
            return
        logger.critical("owner loop: %s", context.get("message"), exc_info=error)
        self._on_fatal(error)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work()` on the owner loop, from whichever loop."""
        if asyncio.get_running_loop() is self.loop:
            return await work()
        return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Callable[[], Awaitable[T]]) -> Any:
        """Start `work()` on the owner loop from any thread; a concurrent future of its result."""

        async def call() -> T:
            return await work()

        coroutine: Coroutine[Any, Any, T] = call()
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """Stop the loop and wait for its thread."""
        self._is_stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)


_Finished = Callable[[Any, "BaseException | None"], None]


class DiskThread:
    """Runs disk work in order, off the owner loop.

    Each result is reported back on the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._unfinished = 0
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], _Finished] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` after everything submitted before; `done(result, error)` follows on the owner loop."""

        def finished(result: T | None, error: BaseException | None) -> None:
            self._unfinished -= 1
            done(result, error)

        self._unfinished += 1
        self._jobs.put((work, finished))

    @property
    def is_idle(self) -> bool:
        """Whether no submitted work is under way: then the loop may do disk work itself."""
        return not self._unfinished

    async def run(self, work: Callable[[], T]) -> T:
        """Await `work()` done on the disk thread, from the owner loop."""
        future: asyncio.Future[T] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        self.submit(work, done)
        return await future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, finished = job
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed on to whoever asked
                self._loop.call_soon_threadsafe(finished, None, error)
            else:
                self._loop.call_soon_threadsafe(finished, result, None)
            # None of these is to live on until the next job.
            result = None
            del job, work, finished

    def end(self) -> None:
        """End the thread behind what was submitted."""
        self._jobs.put(None)

    def stop(self) -> None:
        """Finish what was submitted, and wait for the thread's end."""
        self.end()
        self._thread.join(timeout=30)


QUICK_S = 0.002
STALL_S = 0.010
TRIAL_WRITES = 32
SMALL_WRITE_BYTES = 64 * 1024
SMALL_WRITE_MESSAGES = 4
_WEIGHT = 1 / 32


class QuickDisk:
    """Trusts a disk whose small durable writes take less than 2 ms on average.

    After each stall it is on trial for 32 writes.

    A stall counts as 10 ms in the average, however long it was: what is to be known is how long the others
    take.
    """

    def __init__(self) -> None:
        self._average_s = STALL_S
        self._trial = TRIAL_WRITES
        self.is_trusted = False
        """Whether the next small write may be waited for."""

    def took(self, seconds: float) -> None:
        """A small write was durable after so long."""
        if seconds >= STALL_S:
            seconds = STALL_S
            self._trial = TRIAL_WRITES
        elif self._trial:
            self._trial -= 1
        self._average_s += (seconds - self._average_s) * _WEIGHT
        self.is_trusted = not self._trial and self._average_s < QUICK_S


def prepare_broker_process() -> None:
    """Set up the process of a broker actor, before it serves."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # All files that it makes are closed to other users.
    os.umask(0o077)
    raise_file_limit()
    # Threads started from here on inherit it.
    take_normal_priority(threading.current_thread())
    end_with_raylet()
    # Imported modules stay. To look for garbage in it first took 40 ms, and there was none.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def take_normal_priority(thread: threading.Thread) -> None:
    """Give a thread niceness 0; not every user may.

    Ray starts workers with niceness 15: a program that computes beside them would get nearly all of the
    machine.
    """
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread.native_id or 0, 0)


def take_low_priority(thread: threading.Thread) -> None:
    """Give a thread niceness 10: it computes with what others leave."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread.native_id or 0, _LOW_PRIORITY)


def _exit_process(_error: BaseException) -> None:
    logging.shutdown()
    os._exit(70)


def end_with_raylet() -> None:
    """End this process as soon as its raylet has ended, reaped or not.

    Ray's own look takes a process that nobody has reaped for a living one. Where the first process of a
    container does not reap, an actor would stay behind for ever, and keep its data directory from the next
    broker.
    """
    pid = os.environ.get(_RAYLET_PID, "")
    if not pid.isdigit():
        return
    try:
        raylet = pidfd_open(int(pid))
    except OSError:  # gone, or of another PID namespace: Ray has to look
        return
    threading.Thread(target=_end_behind, args=(raylet,), name="raylet", daemon=True).start()


def _end_behind(process: int) -> None:
    waiter = select.poll()
    waiter.register(process, select.POLLIN)
    waiter.poll()
    # Nothing durable depends on an orderly end, and Ray would end this process now.
    os._exit(_EXIT_CODE)
