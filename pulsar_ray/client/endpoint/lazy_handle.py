"""Connects unpickled producers, consumers and readers at their first use.

That is not while they are unpickled: Ray holds a lock while it unpickles a task's arguments, and the thread
that connects needs it for the answers of the broker's actors.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.errors import AlreadyClosed

S = TypeVar("S", bound="LazyHandle")


class OpenOnce:
    """Opens something once, in the first thread that needs it.

    If that fails it is tried again at the next use.
    """

    def __init__(self, open_now: Callable[[], object]) -> None:
        self._open_now = open_now
        self._lock = threading.RLock()
        self._is_done = False
        self._is_given_up = False

    def run(self) -> None:
        """Open unless that was done.

        Raises the errors of opening, AlreadyClosed if it was given up.
        """
        with self._lock:
            if self._is_given_up:
                raise AlreadyClosed("it was closed before its first use in this process")
            if not self._is_done:
                self._open_now()
                self._is_done = True
                # It refers to the handle, which would be garbage of the collector's only.
                self._open_now = _opened

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


def _opened() -> None:
    """Do nothing: it is open."""


class LazyHandle:
    """Base of handles that can be unpickled, and that `with` closes."""

    _ending: Ending

    def open_lazily(self, open_now: Callable[[], object], **known: Any) -> OpenOnce:
        """Set the `known` attributes, and open at the first look at another one.

        `open_now` is called for that, and sets all attributes.
        """
        kind = type(self)

        def open_for_good() -> None:
            open_now()
            self.__class__ = kind

        opening = OpenOnce(open_for_good)
        self.__dict__.update(known, _open_once=opening)
        self.__class__ = _unopened(kind)  # type: ignore[arg-type]  # classes can be hashed
        return opening

    def _never_opened(self) -> bool:
        """Give up opening; False if the handle is open."""
        opening = self.__dict__.get("_open_once")
        return isinstance(opening, OpenOnce) and opening.give_up()

    def known_ending(self, what: str) -> Ending:
        """The ending of an unpickled handle, which may be closed already; else a new one."""
        return self.__dict__.setdefault("_ending", Ending(what))  # type: ignore[no-any-return]

    @property
    def ending(self) -> Ending:
        """Whether and how the handle was closed; not part of the official client."""
        return self._ending

    def close(self) -> None:
        """Close; a second call raises AlreadyClosed."""
        raise NotImplementedError

    def __del__(self) -> None:
        ending = self.__dict__.get("_ending")
        if ending is not None:
            ending.forgotten(self)

    def __enter__(self: S) -> S:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AlreadyClosed):
            self.close()


@functools.cache
def _unopened(kind: type[LazyHandle]) -> type[LazyHandle]:
    """Return a class like `kind` whose objects open when something is missing.

    Once open they are of `kind` itself: each attribute of a class with `__getattr__` costs several times as
    much.
    """

    def open_and_get(handle: LazyHandle, name: str) -> Any:
        opening = handle.__dict__.get("_open_once")
        if isinstance(opening, OpenOnce) and not name.startswith("__"):
            opening.run()
        if name not in handle.__dict__:
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        return handle.__dict__[name]

    names = {"__getattr__": open_and_get, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), names)


class SharableClient(Protocol):
    """A client of any kind."""

    @property
    def is_usable(self) -> bool:
        """Whether it is open, of this process, and its broker not known to be gone."""


C = TypeVar("C", bound=SharableClient)


class SharedClients(Generic[C]):
    """Keeps one client per cluster and transport. Thread-safe.

    All handles that were pickled from clients of the same cluster use the same client where they arrive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str, str], C] = {}

    def find(self, options: ClientOptions, address: str, connect: Callable[[], C]) -> C:
        """Find the client of a cluster.

        `connect` makes a missing one, and another in place of one that has ended.
        """
        key = (address, str(options.data_dir), options.transport)
        known = self._clients.get(key)
        # Without the lock: what has left its cluster ends now, and tells the application.
        if known is not None and known.is_usable:
            return known
        with self._lock:
            client = self._clients.get(key)
            if client is None or client is known:
                client = self._clients[key] = connect()
            return client
