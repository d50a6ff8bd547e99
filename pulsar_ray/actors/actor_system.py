"""The actors of a cluster as the control plane sees them.

Those of Ray are in `ray_actors`. Whatever comes of an actor or its call is a value, or a typed error of ours,
so that the control plane runs over any system of actors (ADR 0114).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Protocol

from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.config import Settings


class ActorKind(Enum):
    """The kinds of actors there are, each with the name of its class."""

    PARTITION = "TopicPartition"
    DISPATCHER = "SubscriptionDispatcher"
    TRACKER = "DelayedDeliveryTracker"
    COMPACTOR = "TopicCompactor"
    STORE = "StoreActor"


class ActorHandle(Protocol):
    """An actor, which may have ended by now. Equal handles are those of one actor."""

    @property
    def raw(self) -> Any:
        """The handle that crosses to other processes."""
        ...

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        """Call a method and return its answer.

        Raises what the actor raises; Timeout without an answer in time, Moved if the actor is gone for good,
        NotConnected while it restarts, ServiceUnitNotReady for any other failure of the system. The call may
        have been carried out then.
        """
        ...

    def is_running(self) -> bool:
        """Whether the actor has started, and does not restart."""
        ...

    def kill(self) -> None:
        """End the actor for good; its name is free a moment later."""
        ...

    def crash(self) -> None:
        """End the actor's process, which starts again. May block for a while."""
        ...


class OwnActor(Protocol):
    """The actor that this code runs in."""

    @property
    def node_id(self) -> str:
        """The node that the actor runs on."""
        ...

    @property
    def was_restarted(self) -> bool:
        """Whether another process of the actor ran before this one."""
        ...

    def begin(self, component: str, settings: Settings) -> None:
        """Prepare this process, and begin its log."""
        ...

    def call(self, method: str) -> None:
        """Call a method of this actor, and wait for nothing."""
        ...

    def report(self, settings: Settings, gather: Callable[[], Awaitable[ActorReport]]) -> None:
        """Report figures once a period from now on, on the running loop: the actor serves."""
        ...

    def end(self, *, for_good: bool) -> None:
        """End this process; unless it is for good another one begins."""
        ...

    async def owner_died(self, call: Any) -> bool:
        """Wait for a call that a client owns; whether its process died meanwhile."""
        ...


class ActorSystem(Protocol):
    """Makes actors and finds them by name, and knows the nodes."""

    def create(self, kind: ActorKind, name: str, node_id: str | None, *arguments: Any) -> ActorHandle:
        """Create a detached actor on a node, or return the one that has the name."""
        ...

    def begin_controller(self, data_dir: str, settings: Settings, order: CatalogOrder) -> ActorHandle:
        """Create the controller on the node of its order, or return it."""
        ...

    async def make_ready(self, node_id: str) -> float:
        """Have a process come up on a node for the next actor there.

        Returns how many seconds that takes about; without it the actor starts later.
        """
        ...

    def find(self, name: str) -> ActorHandle | None:
        """The actor of a name; None if there is none."""
        ...

    def names(self) -> list[str]:
        """The names of all actors that have not ended for good."""
        ...

    def hosts(self) -> dict[str, str]:
        """The host of each living node, by the node's id."""
        ...

    def draining(self) -> set[str]:
        """The ids of nodes on which nothing is to start any more."""
        ...
