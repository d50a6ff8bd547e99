"""An ActorSystem whose actors are objects of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_ray.actors.actor_system import ActorKind
from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved, NotAllowedError, Timeout
from pulsar_ray.lane.waiting import within

Make = Callable[[ActorKind, str, "str | None", tuple[Any, ...]], Any]


class LocalActor:
    """An ActorHandle of `raw`, whose methods are coroutines.

    `failure` is raised by every call; TimeoutError stands for no answer.
    """

    def __init__(self, system: LocalActors, name: str, node_id: str | None, raw: Any) -> None:
        self.name = name
        self.node_id = node_id
        self.raw = raw
        self.failure: BaseException | None = None
        self.crashes = 0
        self._system = system

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        """See ActorHandle."""
        what = f"{self.name}.{method}"
        if isinstance(self.failure, TimeoutError):
            raise Timeout(f"{what} is not answered")
        if self.failure is not None:
            raise self.failure
        if not self.is_running():
            raise Moved(f"{what}: the actor is gone")
        try:
            return await within(getattr(self.raw, method)(*arguments), within_s)
        except TimeoutError:
            raise Timeout(f"{what} is not answered") from None

    def is_running(self) -> bool:
        """See ActorHandle."""
        return self._system.actors.get(self.name) is self

    def kill(self) -> None:
        """See ActorHandle; the name is free at once."""
        if self.is_running():
            del self._system.actors[self.name]
            self._system.killed.append(self.name)

    def crash(self) -> None:
        """Count the crash; the object stays."""
        self.crashes += 1


class LocalActors:
    """Actors that `make` makes of kind, name, node and arguments."""

    def __init__(self, make: Make) -> None:
        self.actors: dict[str, LocalActor] = {}
        self.killed: list[str] = []
        """The names of those that were ended for good."""
        self.nodes: dict[str, str] = {}
        """The host of each node."""
        self.drained: set[str] = set()
        self._make = make

    def create(self, kind: ActorKind, name: str, node_id: str | None, *arguments: Any) -> LocalActor:
        """See ActorSystem."""
        if name not in self.actors:
            self.actors[name] = LocalActor(self, name, node_id, self._make(kind, name, node_id, arguments))
        return self.actors[name]

    def begin_controller(self, data_dir: str, settings: Settings, order: CatalogOrder) -> LocalActor:
        """Refuse: no store here begins one."""
        raise NotAllowedError("there is one controller here, which the test has begun")

    async def make_ready(self, node_id: str) -> float:
        """See ActorSystem; its actors need no processes."""
        return 0.0

    def find(self, name: str) -> LocalActor | None:
        """See ActorSystem."""
        return self.actors.get(name)

    def names(self) -> list[str]:
        """See ActorSystem."""
        return list(self.actors)

    def hosts(self) -> dict[str, str]:
        """See ActorSystem."""
        return dict(self.nodes)

    def draining(self) -> set[str]:
        """See ActorSystem."""
        return set(self.drained)
