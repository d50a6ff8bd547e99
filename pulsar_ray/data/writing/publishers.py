"""Publisher actors send the parts of a write, each one at a time.

Actors and not tasks, for the reason that readers are: Ray ends idle workers, and each write would pay for new
processes and connections. Ray starts one that dies anew and has it send its part again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray import ObjectRef
from ray.exceptions import RayError

from pulsar_ray.client.client import Client
from pulsar_ray.data.failing_actors import (
    ATTEMPTS,
    AtWork,
    kill_stuck,
    look_after_s,
    own_error,
    with_sign_of_life,
)
from pulsar_ray.data.idle_handles import IdleHandles
from pulsar_ray.data.writing.publishing import Part, publish_part

_MAX_PUBLISHERS = 64


class Connection(NamedTuple):
    """Where the broker is, as `Client` takes it."""

    service_url: str = "auto"
    data_dir: str | None = None

    def open(self) -> Client:
        """Connect."""
        return Client(self.service_url, data_dir=self.data_dir)


class Publisher:
    """Sends parts over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client: Client | None = None

    def __repr__(self) -> str:
        return "pulsar-ray publisher"

    def is_alive(self) -> bool:
        """Answer, while a part is sent as well."""
        return True

    def publish(self, part: Part) -> dict[int, int]:
        """Send a part; see `publish_part`."""
        if self._client is None:
            self._client = self._connection.open()
        return publish_part(self._client, part)


class PublisherPool:
    """The publishers of a process, each with one part at a time.

    They reserve no CPU, for executors of Spark may have them all.
    """

    def __init__(self) -> None:
        self._idle: IdleHandles[Connection] = IdleHandles()

    def publish(self, parts: Sequence[Part], connection: Connection) -> list[dict[int, int]]:
        """Send all parts; their counts, in their order.

        Raises the first error once no publisher sends any more. A part whose publisher dies, stands still
        for two minutes, or takes longer than `set_work_timeout` allows is sent again, twice; then
        NotConnected or Timeout is raised.
        """
        waiting = deque(enumerate(parts))
        running: dict[ObjectRef[Any], tuple[int, AtWork]] = {}
        counts: list[dict[int, int]] = [{} for _ in parts]
        error: Exception | None = None
        room = min(len(parts), _publisher_limit())
        try:
            while running or (waiting and error is None):
                while waiting and error is None and len(running) < room:
                    place, part = waiting.popleft()
                    publisher = AtWork(self._idle.take(connection) or _new_publisher(connection))
                    running[publisher.actor.publish.remote(part)] = place, publisher
                finished, _ = ray.wait(list(running), num_returns=1, timeout=look_after_s())
                if not finished:
                    kill_stuck([publisher for _, publisher in running.values()])
                for done in finished:
                    place, publisher = running.pop(done)
                    try:
                        counts[place] = ray.get(done)
                    except RayError as failed:
                        error = error or _own_error(failed, publisher)
                    self._idle.put_back(connection, publisher.actor)
        finally:
            # Left by an interrupt or by the loss of a publisher for good: nobody would wait for the others.
            for _, publisher in running.values():
                ray.kill(publisher.actor)
        if error is not None:
            raise error
        return counts

    def close(self) -> None:
        """End all idle publishers."""
        self._idle.close()


def _new_publisher(connection: Connection) -> Any:
    options = {
        "num_cpus": 0,
        "scheduling_strategy": "SPREAD",
        "max_restarts": -1,
        "max_task_retries": ATTEMPTS - 1,
    }
    return _ACTOR.options(**options).remote(connection)


def _publisher_limit() -> int:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return min(max(int(resources.get("CPU", 1)), 1), _MAX_PUBLISHERS)


def _own_error(failed: RayError, publisher: AtWork) -> Exception:
    return own_error(
        failed,
        "that sent a part of the rows",
        "write the batch again, in more tasks",
        was_slow=publisher.was_slow,
    )


_ACTOR = with_sign_of_life(Publisher)
PUBLISHERS = PublisherPool()
"""The pool of this process."""
