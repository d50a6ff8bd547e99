"""Keeps handles of actors that wait for their next work."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, Generic, TypeVar

import ray

from pulsar_ray.transport.this_ray import ray_job

Key = TypeVar("Key")


class IdleHandles(Generic[Key]):
    """The idle actors of a process, by what they are for. Thread-safe.

    Those of a Ray that was left since have ended, and are forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[Key, list[Any]] = defaultdict(list)
        self._job = ""

    def take(self, key: Key) -> Any:
        """Take one out; None if there is none."""
        with self._lock:
            self._forget_other_job()
            handles = self._handles[key]
            return handles.pop() if handles else None

    def put_back(self, key: Key, actor: Any) -> None:
        """Keep one that has nothing to do."""
        with self._lock:
            self._handles[key].append(actor)

    def count(self, key: Key) -> int:
        """How many there are."""
        with self._lock:
            self._forget_other_job()
            return len(self._handles[key])

    def handles(self) -> list[Any]:
        """Return all of them, whatever they are for."""
        with self._lock:
            self._forget_other_job()
            return [actor for actors in self._handles.values() for actor in actors]

    def close(self) -> None:
        """End all."""
        idle = self.handles()
        with self._lock:
            self._handles.clear()
        for actor in idle:
            ray.kill(actor)

    def _forget_other_job(self) -> None:
        job = ray_job()
        if job != self._job:
            self._handles.clear()
            self._job = job
