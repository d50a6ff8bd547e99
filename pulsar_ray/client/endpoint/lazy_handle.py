"""Producers, consumers and readers that were pickled into another process connect there at their first use.

Not while they are unpickled: Ray holds a lock while it unpickles a task's arguments, and the thread that
connects needs it for the answers of the broker's actors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.errors import AlreadyClosed

S = TypeVar("S", bound="LazyHandle")


class OpenOnce:
    """What is left to do, done once by whoever needs it first; tried again at the next use if it fails."""

    def __init__(self, open_now: Callable[[], object]) -> None:
        self._open_now = open_now
        self._lock = threading.RLock()
        self._is_done = False
        self._is_given_up = False

    def run(self) -> None:
        """Open unless that was done. Raises what opening raises, AlreadyClosed if it was given up."""
        with self._lock:
            if self._is_given_up:
                raise AlreadyClosed("it was closed before its first use in this process")
            if not self._is_done:
                self._open_now()
                self._is_done = True

    def start(self, name: str) -> None:
        """Open in a thread of this name."""

        def run() -> None:
            with suppress(AlreadyClosed):
                self.run()

        threading.Thread(target=run, name=name, daemon=True).start()

    def give_up(self) -> bool:
        """Never open; False if that was done."""
        with self._lock:
            self._is_given_up = not self._is_done
            return self._is_given_up


class LazyHandle:
    """Base of what can be unpickled, and of what `with` closes."""

    _ending: Ending

    def open_lazily(self, open_now: Callable[[], object], **known: Any) -> OpenOnce:
        """Set the `known` attributes; the first look at another one calls `open_now`, which sets all."""
        opening = OpenOnce(open_now)
        self.__dict__.update(known, _open_once=opening)
        return opening

    def _never_opened(self) -> bool:
        """Whether there is nothing to end: it was not opened yet, and never will be now."""
        opening = self.__dict__.get("_open_once")
        return isinstance(opening, OpenOnce) and opening.give_up()

    def known_ending(self, what: str) -> Ending:
        """That of an unpickled one, which may have been closed already; else a new one."""
        return self.__dict__.setdefault("_ending", Ending(what))  # type: ignore[no-any-return]

    @property
    def ending(self) -> Ending:
        """Whether and how it was closed; not part of the official client."""
        return self._ending

    def close(self) -> None:
        """A second call raises AlreadyClosed."""
        raise NotImplementedError

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AlreadyClosed):
            self.close()

    def __getattr__(self, name: str) -> Any:
        # An object that is open has all its attributes and never comes here.
        opening = self.__dict__.get("_open_once")
        if isinstance(opening, OpenOnce) and not name.startswith("__"):
            opening.run()
        if name not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.__dict__[name]
