"""One life of what compacts a partition, in this process."""

from __future__ import annotations

import os
from concurrent.futures import Future
from typing import Any

from pulsar_ray.broker.partition.compaction_job import CompactionJob
from pulsar_ray.errors import NotConnected

_OF_ALL_ACTORS = ("idle", "apply_policies", "shutdown")


class StubCompactor:
    """A TopicCompactor. `kill` is a SIGKILL."""

    def __init__(self) -> None:
        self._job = CompactionJob()
        self.is_dead = False

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Call the actor's Ray method of this name."""
        if self.is_dead:
            raise NotConnected("the compactor is restarting")
        if method in _OF_ALL_ACTORS:
            return None
        if method == "probe":
            return os.getpid()
        return getattr(self._job, method)(*arguments)

    def start_call(self, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Make a call; none takes long."""
        answer: Future[Any] = Future()
        try:
            answer.set_result(self.call(method, arguments))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            answer.set_exception(error)
        return answer

    def kill(self) -> None:
        """End it."""
        self.is_dead = True
        self._job.end()

    def wait_ended(self) -> None:
        """Return at once: `kill` lets go of everything."""
