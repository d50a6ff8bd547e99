"""The link of producers and consumers to one actor, as a protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pulsar_ray.errors import WrongNode
from pulsar_ray.lane.io_thread import LoopTimers, Timers
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.requests import Request
from pulsar_ray.transport.carriers import Connection
from pulsar_ray.transport.cluster import AttachReply
from pulsar_ray.transport.endpoint import Endpoint, Reply, WakeableEvent


class EndpointLink(Protocol):
    """Carries the packets of endpoints; `transport.actor_link.ActorLink` is the real one."""

    timers: Timers
    loop_timers: LoopTimers | None

    @property
    def carrier(self) -> Connection | None: ...

    @property
    def where(self) -> str: ...

    @property
    def is_attached(self) -> bool: ...

    @property
    def is_asleep(self) -> bool: ...

    @property
    def is_parked(self) -> bool: ...

    @property
    def absence(self) -> WrongNode | None: ...

    def ensure_attached(self, deadline: float) -> AttachReply: ...

    def attaches(self, deadline: float) -> bool: ...

    def begin_attaching(self) -> None: ...

    def wake(self) -> None: ...

    def add_endpoint(self, endpoint_id: int, endpoint: Endpoint) -> None: ...

    def remove_endpoint(self, endpoint_id: int) -> None: ...

    def send(self, buffers: list[Any], only_on: Connection | None = None, *, waits: bool = False) -> bool: ...

    def request_async(
        self,
        build: Callable[[int], Request],
        reply: Reply,
        *,
        waits: bool = False,
        behind: Sequence[Buffer] = (),
    ) -> None: ...

    def ask(
        self, send: Callable[[Reply], None], deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any: ...

    def wait(self, event: WakeableEvent, deadline: float) -> bool: ...
