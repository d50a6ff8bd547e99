"""The cluster as a client needs it, as a protocol.

It turns names into addresses, attaches, makes the tunnel's calls, and reports silent actors.

`ray_cluster.py` is the real one; `pulsar_ray.testing.stub_cluster` serves the same broker objects in one
process without Ray.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pulsar_ray.errors import PulsarException, WrongNode
from pulsar_ray.model.topic_name import TopicName

RouteFields = tuple[str, int, str, str, str]
"""The fields of a PartitionRoute, as the controller answers them."""


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    """One partition of a topic, and its actor.

    Its full name, its index (-1 when the topic is not partitioned) and the name of its actor.
    """

    topic: str
    partition: int
    address: str
    away: str = ""
    """Where it lies, if no running node holds that; empty if it is served."""
    host: str = ""
    """The host of the node that has it; empty if none has, or nobody asked."""


def check_any_there(routes: Sequence[PartitionRoute]) -> None:
    """Raise WrongNode if all partitions of a topic are away."""
    if routes and all(route.away for route in routes):
        others = f" (and {len(routes) - 1} more partitions of its topic are away)" if len(routes) > 1 else ""
        raise WrongNode(f"{routes[0].away}{others}")


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """Which dispatcher is wanted, and how to create the subscription if it is new."""

    topic: str
    subscription: str
    durable: bool
    initial_position: str
    properties: dict[str, str] = field(default_factory=dict)
    create: bool = True
    left: tuple[int, ...] = ()
    """The incarnations of consumers that were closed while the dispatcher slept."""
    was_open: bool = False
    """Whether a consumer that had it open asks.

    Then what lies in no store begins anew.
    """

    @property
    def asked(self) -> tuple[Any, ...]:
        """The arguments of Controller.dispatcher."""
        return (
            self.topic,
            self.subscription,
            self.durable,
            self.initial_position,
            self.properties,
            self.create,
            self.was_open,
        )

    def after_restart(self) -> SubscriptionRequest:
        """Return what a dispatcher is to do that starts again.

        The subscription is there already, or was removed meanwhile and must not come back; but one of a
        non-persistent topic is as long as its actor, restarts included.
        """
        create = not (self.durable and TopicName.parse(self.topic).is_persistent)
        return replace(self, properties={}, create=create, was_open=False)


@dataclass(frozen=True, slots=True)
class AttachReply:
    """An actor's answer to `attach`.

    It names the session, where the actor's lanes listen, and how to know whether its files can be read.
    """

    session_id: int
    attachment: int
    token: bytes
    epoch: int
    unix_path: str | None
    tcp_address: tuple[str, int] | None
    reach: tuple[str, str]
    directory: str
    protocol_version: int
    details: dict[str, Any]
    host: str = ""
    """The host of the actor's node, for errors."""


class Cluster(Protocol):
    """Raises the typed errors of `pulsar_ray.errors`; every call has a deadline of its own."""

    def resolve(
        self, topic: str, *, create: bool, was_open: bool = False, timeout_s: float
    ) -> list[PartitionRoute]:
        """List the partitions of a topic, started unless they are away.

        One that `was_open` and lay in no store begins anew, unless it was deleted.
        """
        ...

    def partitions(self, topic: str, timeout_s: float) -> list[PartitionRoute]:
        """List what `resolve` does of a topic that is there, and start none of them."""
        ...

    def topics(self, namespace: str, timeout_s: float) -> list[tuple[str, int]]: ...

    def dispatcher(self, request: SubscriptionRequest, timeout_s: float) -> str: ...

    def attach(
        self, address: str, client_id: str, *, want_tcp: bool, attempt: int, timeout_s: float
    ) -> AttachReply:
        """Attach to an actor.

        `attempt` rises with each call of a process: a late one cannot undo what a later one got.
        """
        ...

    def exchange(
        self,
        address: str,
        session_id: int,
        attachment: int,
        token: bytes,
        up: tuple[int, Sequence[tuple[int, Any]]],
    ) -> Any:
        """Start one tunnel call; returns a handle for `exchange_result`."""
        ...

    def exchange_result(self, handle: Any, timeout_s: float) -> tuple[int, list[tuple[int, bytes]]]: ...

    def tie_life(self, address: str, session_id: int, attachment: int, token: bytes) -> None:
        """Let the actor notice when this process dies.

        For a carrier that does not show it.
        """
        ...

    def controller(
        self,
        method: str,
        *arguments: Any,
        timeout_s: float,
        was_done: Callable[[PulsarException], bool] = lambda _: False,
    ) -> Any:
        """Call the controller, again while it restarts; `was_done` as for `retry.until`."""

    def await_wake(
        self, client_id: str, parked: Mapping[str, Sequence[tuple[int, bool]]], timeout_s: float
    ) -> list[str]:
        """Wait until partitions of `parked` dispatchers are awake; returns these dispatchers.

        `parked` has of each what `Endpoint.awaited_consumer` is of the client's consumers. If the process
        dies meanwhile they have left. Empty after `timeout_s`.
        """
        ...

    def call(self, address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Make one control call to an actor. Raises Moved when no actor has the name."""

    def call_again(self, address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Make a harmless control call to an actor, again while it restarts."""

    def stats(self, address: str, timeout_s: float = ...) -> dict[str, Any]:
        """An actor's own counters. Raises Moved, NotConnected, Timeout; starts nobody."""
        ...

    def dispatcher_gone(self, address: str, *, was_deleted: bool = False) -> None: ...

    def forget(self, address: str) -> None:
        """Look an actor's name up again next time: the actor has left it.

        Asks nobody, and never raises.
        """
        ...

    def is_starting(self, address: str) -> bool:
        """Return whether Ray is still starting an actor's process, False where nobody can tell.

        Never raises.
        """
        ...

    def report_silent(self, address: str) -> None:
        """Have an actor looked after that does not answer.

        Never raises.
        """
        ...

    def end_calls(self, wait_s: float) -> None:
        """End the calls of a client that leaves.

        Calls by threads of this process give up, and are waited for so long.
        """
        ...

    @property
    def is_reachable(self) -> bool:
        """Whether calls may still be answered; looks whether this process has left the cluster."""
        ...

    def when_gone(self, tell: Callable[[PulsarException], None]) -> None:
        """Call `tell` once the broker is gone for good.

        It gets the error that every call raises from then on.
        """
        ...
