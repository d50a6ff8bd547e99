"""Opens a carrier for an attached session.

It is a lane where one can be had, the Ray tunnel otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pulsar_ray.errors import ConnectError, PulsarException
from pulsar_ray.lane.address import LaneAddress, TcpAddress, UnixAddress
from pulsar_ray.lane.connection import Awaited, ConnectionHandler, LaneConnection
from pulsar_ray.lane.handshake import HelloFields
from pulsar_ray.lane.loop_connection import LoopConnection
from pulsar_ray.transport.cluster import AttachReply, Cluster
from pulsar_ray.transport.ray_connection import RayConnection

TRANSPORTS = ("auto", "socket", "tcp", "ray")


class Connection(Protocol):
    """A carrier's client end. `handler.on_packets` and `on_lost` as in LaneConnection."""

    kind: str

    @property
    def is_lost(self) -> bool: ...

    @property
    def has_unread(self) -> bool: ...

    def send(self, buffers: Sequence[Any], *, waits: bool = False) -> None:
        """Take whole packets. Raises the error it was lost with.

        `waits` is a hint: the caller will `wait` next. The tunnel, whose packets some thread has to take up,
        then wakes no thread for it; a lane writes at once, and lets no other thread look for the answer.
        """
        ...

    def room(self, length: int) -> memoryview | None: ...

    def keep_alive(self, packet: bytes) -> None: ...

    def write_at_once(self) -> None:
        """Write from now on though nothing may run the loop any more."""
        ...

    def wait(self, awaited: Awaited, deadline: float) -> bool: ...

    def close(self) -> None: ...


def open_connection(
    cluster: Cluster,
    address: str,
    attached: AttachReply,
    transport: str,
    handler: ConnectionHandler,
    *,
    pushes: bool,
    is_quiet: Callable[[], bool] | None = None,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Connection:
    """Open the carrier that `transport` names.

    With `auto` it is a lane, and the tunnel when none can be had.

    `pushes`: the actor sends of its own accord, so that the tunnel keeps a call waiting there. Otherwise
    `is_quiet` tells whether nothing will come before something is sent. With a `loop` a lane lives on that,
    and packets are handed over there. Raises ConnectError or the actor's refusal when a forced carrier cannot
    be had.
    """
    hello = HelloFields(attached.protocol_version, attached.session_id, attached.token, attached.attachment)
    if transport == "ray":
        return _tunnel(cluster, address, attached, handler, pushes=pushes, loop=loop)
    candidates = _lane_addresses(attached, transport)
    for candidate in candidates:
        try:
            if loop is not None:
                return LoopConnection.connect(candidate, hello, handler, loop)
            return LaneConnection.connect(candidate, hello, handler, is_quiet=is_quiet)
        except (PulsarException, OSError) as error:
            if transport != "auto":
                raise ConnectError(f"no {transport} lane to {address} ({candidate}): {error}") from None
    if transport != "auto":
        raise ConnectError(f"{address} offers no {transport} lane here; transport='auto' takes what there is")
    return _tunnel(cluster, address, attached, handler, pushes=pushes, loop=loop)


def _tunnel(
    cluster: Cluster,
    address: str,
    attached: AttachReply,
    handler: ConnectionHandler,
    *,
    pushes: bool,
    loop: asyncio.AbstractEventLoop | None,
) -> RayConnection:
    cluster.tie_life(address, attached.session_id, attached.attachment, attached.token)
    return RayConnection(cluster, address, attached, handler, pushes=pushes, loop=loop)


def _lane_addresses(attached: AttachReply, transport: str) -> list[LaneAddress]:
    lanes: list[LaneAddress] = []
    if transport in ("auto", "socket") and attached.unix_path is not None:
        lanes.append(UnixAddress(attached.unix_path))
    if transport in ("auto", "tcp") and attached.tcp_address is not None:
        lanes.append(TcpAddress(*attached.tcp_address))
    return lanes
