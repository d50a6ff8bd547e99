"""Waits for Ray's answers in threads that do not end with the program.

None of them is inside Ray when the program leaves it.

Ray ends a process with exit code 1 if a thread of it calls Ray once that has shut down. Letting go of a
reference is such a call.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.exceptions as ray_errors

from pulsar_ray.errors import (
    AlreadyClosed,
    BrokerPersistenceError,
    Moved,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    Timeout,
    UnknownError,
)

# Each of ours states the request's fate and what to do next.


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise our typed errors for whatever Ray raises inside; `what` begins the text."""
    try:
        yield
    except ray_errors.GetTimeoutError:
        raise Timeout(
            f"{what}: no answer in time; its process is busy or still starting, which takes longer while "
            "many do. Try again, or with a larger operation_timeout_seconds; whether it was done is unknown"
        ) from None
    except ray_errors.RayTaskError as error:
        # Before PulsarException: Ray raises a class of both, whose text is the actor's traceback.
        cause = error.cause
        if isinstance(cause, PulsarException):
            raise cause from None
        if isinstance(cause, OSError):
            raise BrokerPersistenceError(f"{what}: {cause}: see to the disk of the data directory") from None
        raise UnknownError(f"{what}: {type(cause).__name__}: {cause}") from None
    except PulsarException:
        raise
    except (ray_errors.ActorDiedError, ray_errors.ActorUnschedulableError) as error:
        # Never final: the actor may have moved, been replaced or been stopped for a moment. The controller
        # knows.
        raise Moved(f"{what}: the actor is gone ({type(error).__name__}); resolve it again") from None
    except ray_errors.ActorUnavailableError:
        raise NotConnected(f"{what}: the actor is restarting") from None
    except ray_errors.RayError as error:
        raise ServiceUnitNotReady(f"{what}: {type(error).__name__}: {error}") from None
    except ValueError as error:
        # ray.get_actor of a name that nobody has.
        if "Failed to look up actor" in str(error):
            raise Moved(f"{what}: no such actor; resolve it again") from None
        raise


SLICE_S = 0.2
EXIT_DEADLINE_S = 5.0
LEAVE_DEADLINE_S = 60.0
_LEAVES = AlreadyClosed("the program leaves Ray")


class RayCall:
    """A call that was made.

    It counts until its result was asked for once, or it was let go of.
    """

    __slots__ = ("reference",)

    def __init__(self, reference: Any) -> None:
        self.reference = reference


class RayCalls:
    """A context for every use of Ray.

    At the process's end those inside are waited for, and nobody enters.

    References to results are let go of inside, or else by nobody.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_ending = False
        self._has_ended = False
        self._why: PulsarException = _LEAVES
        self._one_leaves = threading.Lock()
        self._open: set[RayCall] = set()

    def __enter__(self) -> None:
        with self._changed:
            if self._is_ending:
                raise self._why.again()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    @property
    def is_ending(self) -> bool:
        """Whether nobody is let in just now, or any more."""
        return self._is_ending

    @property
    def has_ended(self) -> bool:
        """Whether the program ends."""
        return self._has_ended

    def made(self, reference: Any) -> RayCall:
        """Keep a new call's reference."""
        call = RayCall(reference)
        self._open.add(call)
        return call

    def result(
        self,
        call: RayCall,
        timeout_s: float,
        *,
        given_up: Callable[[], PulsarException | None] = lambda: None,
    ) -> Any:
        """A `ray.get` that gives up when the program ends, or with the error of `given_up`.

        Raises what Ray raises, AlreadyClosed.
        """
        try:
            return self._get(call.reference, timeout_s, given_up)
        finally:
            if not self._is_ending:
                self._open.discard(call)
                call.reference = None

    def let_go(self, call: RayCall) -> None:
        """Nobody wants the result."""
        with contextlib.suppress(AlreadyClosed), self:
            self._open.discard(call)
            call.reference = None

    def _get(self, reference: Any, timeout_s: float, given_up: Callable[[], PulsarException | None]) -> Any:
        deadline = time.monotonic() + timeout_s
        while not self._is_ending:
            left = deadline - time.monotonic()
            try:
                return ray.get(reference, timeout=max(0.0, min(left, SLICE_S)))
            except ray_errors.RayError as error:
                is_early = isinstance(error, ray_errors.GetTimeoutError)
                why = given_up() if is_early else None
                if is_early and left > SLICE_S and why is None:
                    continue
                if is_early:
                    # Somebody has to take a late answer: an error that nobody took, Ray prints into the
                    # terminal.
                    reference.future()
                # The frames of its traceback would keep the reference for as long as somebody keeps them.
                del reference
                if why is not None:
                    raise why.again() from None
                raise error.with_traceback(None) from None
        raise (given_up() or self._why).again()

    @contextmanager
    def kept_out(self, wait_s: float = EXIT_DEADLINE_S, why: PulsarException | None = None) -> Iterator[bool]:
        """Keep this process's calls out of Ray around `ray.shutdown()`.

        Calls under way are given up first, and nobody enters until it is over: all raise `why`, AlreadyClosed
        by default.

        False if one of them has not come back within `wait_s`, or the program ends, which shuts Ray down.
        """
        with self._one_leaves:
            if not self._has_ended:
                self._why = why or _LEAVES
            is_empty = self._empty(wait_s) and not self._has_ended
            try:
                if is_empty:
                    # Of no use on another Ray, which must not be asked to let go of them.
                    for call in list(self._open):
                        self._open.discard(call)
                        call.reference = None
                yield is_empty
            finally:
                self._is_ending = self._has_ended

    def _empty(self, wait_s: float) -> bool:
        with self._changed:
            self._is_ending = True
            return self._changed.wait_for(lambda: not self._inside, wait_s)

    def end(self) -> None:
        """End all calls at exit, before Ray's own end."""
        self._has_ended = True
        self._why = _LEAVES
        self._empty(EXIT_DEADLINE_S)
        # A thread that is leaving Ray just now is let do so: two at once end the process with an error.
        self._one_leaves.acquire(timeout=LEAVE_DEADLINE_S)
        # References in cycles that nobody uses any more are not found from now on, by any thread.
        gc.freeze()


class ClientCalls:
    """The calls of one client, among all of the process's.

    A context, as `RAY_CALLS` is, until `close`. Before each use of Ray `look` may find that there are to be
    no more, and call `fail`.
    """

    def __init__(self, all_calls: RayCalls, look: Callable[[], None] = lambda: None) -> None:
        self._all = all_calls
        self._look = look
        self._changed = threading.Condition()
        self._inside = 0
        self._over: PulsarException | None = None

    def __enter__(self) -> None:
        self._check()
        self._all.__enter__()
        with self._changed:
            if is_open := self._over is None:
                self._inside += 1
        if not is_open:
            self._all.__exit__()
            self._check()

    def _check(self) -> None:
        if (why := self._why_over()) is not None:
            raise why.again()

    @property
    def are_open(self) -> bool:
        """Whether calls may be made, as a look finds now."""
        return self._why_over() is None

    def _why_over(self) -> PulsarException | None:
        if self._over is None and not self._all.is_ending:
            self._look()
        return self._over

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()
        self._all.__exit__()

    def made(self, reference: Any) -> RayCall:
        """See RayCalls.made."""
        return self._all.made(reference)

    def result(self, call: RayCall, timeout_s: float) -> Any:
        """See RayCalls.result; gives up soon after `close` or `fail`."""
        return self._all.result(call, timeout_s, given_up=self._why_over)

    def close(self, wait_s: float) -> None:
        """Nobody enters from now on; those inside give up, and are waited for so long."""
        self.fail(AlreadyClosed("the client is closed"))
        with self._changed:
            self._changed.wait_for(lambda: not self._inside, wait_s)

    def fail(self, error: PulsarException) -> bool:
        """Nobody enters from now on; those inside give up, and all raise the reason.

        False if that was so before.
        """
        with self._changed:
            was_open, self._over = self._over is None, error
        return was_open


RAY_CALLS = RayCalls()
# The last registered is called first, and Ray registered when it was imported.
atexit.register(RAY_CALLS.end)
