"""One life of a tracker of delayed messages in this process."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import Any

from pulsar_ray.broker.subscription.delayed.delayed_tracker import DelayedTracker
from pulsar_ray.clock import Clock
from pulsar_ray.errors import NotConnected, Timeout

_OF_ALL_ACTORS = ("idle", "apply_policies", "shutdown")
"""Methods that say nothing to a tracker."""
_PATIENCE_S = 30.0


class StubTracker:
    """A DelayedDeliveryTracker. `kill` is a SIGKILL: rows that are in memory alone are lost."""

    def __init__(self, clock: Clock) -> None:
        self._tracker = DelayedTracker(clock)
        self._lock = threading.Lock()
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self.is_dead = False

    def call(self, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """Call the actor's Ray method of this name. Raises Timeout while it stands still."""
        if not self._may_go_on.wait(timeout_s):
            raise Timeout("the tracker does not answer")
        with self._lock:
            if self.is_dead:
                raise NotConnected("the tracker is restarting")
            if method in _OF_ALL_ACTORS:
                return None
            if method == "probe":
                return os.getpid()
            return getattr(self._tracker, method)(*arguments)

    def start_call(self, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Start a call in a thread."""
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(self.call(method, arguments, _PATIENCE_S))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                answer.set_exception(error)

        threading.Thread(target=run, name="tracker", daemon=True).start()
        return answer

    def freeze(self) -> None:
        """Stand still from now on, as after SIGSTOP, until `thaw`, or until it is killed."""
        self._may_go_on.clear()

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._may_go_on.set()

    def kill(self) -> None:
        """End it, and drop its locks as the kernel would."""
        with self._lock:
            if not self.is_dead:
                self.is_dead = True
                self._tracker._give_up()  # noqa: SLF001 - closes files, and writes nothing
        self._may_go_on.set()

    def wait_ended(self) -> None:
        """Return at once: `kill` lets go of everything."""
