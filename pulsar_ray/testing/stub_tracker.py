"""Trackers of delayed messages in this process, as the controller would start them."""

from __future__ import annotations

import threading
from typing import Any

from pulsar_ray.broker.subscription.delayed.delayed_tracker import DelayedTracker
from pulsar_ray.clock import Clock
from pulsar_ray.errors import Moved, NotConnected, Timeout
from pulsar_ray.transport.actor_names import topic_of_actor, tracker_name


class StubTracker:
    """One life of a tracker.

    `kill` is a SIGKILL: rows that are in memory alone are lost.
    """

    def __init__(self, clock: Clock) -> None:
        self._tracker = DelayedTracker(clock)
        self._lock = threading.Lock()
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self.is_dead = False

    def call(self, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """The actor's Ray method of this name. Raises Timeout while it stands still."""
        if not self._may_go_on.wait(timeout_s):
            raise Timeout("the tracker does not answer")
        with self._lock:
            if self.is_dead:
                raise NotConnected("the tracker is restarting")
            return getattr(self._tracker, method)(*arguments)

    def freeze(self) -> None:
        """Stand still from now on, as after SIGSTOP, until `thaw`, or until it is killed."""
        self._may_go_on.clear()

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._may_go_on.set()

    def kill(self) -> None:
        """End it, and drop its locks as the kernel would."""
        with self._lock:
            self.is_dead = True
            self._tracker._give_up()  # noqa: SLF001 - closes files, and writes nothing
        self._may_go_on.set()


class StubTrackers:
    """The trackers that run, by actor name.

    One that was killed starts again when it is called.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[str, StubTracker] = {}
        self.kept_down: set[str] = set()
        """Names of those that may not start."""

    @property
    def names(self) -> list[str]:
        """Those that run."""
        return list(self._running)

    def start(self, topic: str, subscription: str) -> str:
        """As Controller.delayed_tracker."""
        name = tracker_name(topic, subscription)
        with self._lock:
            self._start(name)
        return name

    def _start(self, name: str) -> StubTracker:
        if name in self.kept_down:
            raise NotConnected(f"{name}: the actor is restarting")
        tracker = self._running.get(name)
        if tracker is None or tracker.is_dead:
            tracker = self._running[name] = StubTracker(self._clock)
        return tracker

    def end(self, name: str) -> None:
        """As Controller.end_tracker."""
        with self._lock:
            tracker = self._running.pop(name, None)
        if tracker is not None:
            tracker.kill()

    def end_of(self, topics: set[str]) -> None:
        """End those of partitions that are gone."""
        for name in self.names:
            if topic_of_actor(name) in topics:
                self.end(name)

    def get(self, topic: str, subscription: str) -> StubTracker:
        """The one that runs."""
        return self._running[tracker_name(topic, subscription)]

    def call(self, name: str, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        """Call one, restarting it first if it was killed. Raises Moved if there is none."""
        with self._lock:
            if name not in self._running:
                raise Moved(f"{name}: no such actor")
            tracker = self._start(name)
        return tracker.call(method, arguments, timeout_s)

    def report_silent(self, name: str) -> None:
        """Kill one that does not answer; it starts again."""
        tracker = self._running.get(name)
        if tracker is not None:
            tracker.kill()
