"""The tunnel of a broker in one process.

A seed decides the fate of each call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from pulsar_ray.errors import NotConnected, PulsarException
from pulsar_ray.testing.lossy_tunnel import FateSource, TunnelFaults
from pulsar_ray.testing.stub_actor import StubActor


class TunnelCall(NamedTuple):
    """A call under way, or lost."""

    actor: StubActor
    future: Future[Any] | None
    has_reply: bool

    def result(self, timeout_s: float) -> tuple[int, list[tuple[int, bytes]]]:
        """Wait for the packets that a call brought down.

        Raises NotConnected for a lost call or reply.
        """
        if self.future is None or not self.has_reply:
            raise NotConnected(f"{self.actor.address}: the call or its reply was lost")
        last_received, packets = self.actor.result(self.future, timeout_s)
        return last_received, [(number, bytes(packet)) for number, packet in packets]


class StubTunnel:
    """Makes the calls; what crosses is a copy, as between processes."""

    def __init__(self, faults: TunnelFaults, seed: int) -> None:
        self.fates = FateSource(faults, seed)

    def start(
        self,
        actor: StubActor,
        session_id: int,
        attachment: int,
        token: bytes,
        up: tuple[int, Sequence[tuple[int, Any]]],
    ) -> TunnelCall:
        """Start one call, with the fate that is drawn for it."""
        fate = self.fates.draw()
        packets = [(number, bytes(packet)) for number, packet in up[1]]

        def call() -> Future[Any]:
            return actor.submit(
                lambda: actor.host.exchange(session_id, attachment, token, up[0], lambda: packets)
            )

        future = None
        if fate.after_s == 0.0:
            for _ in range(fate.times):
                future = call()
        elif fate.after_s is not None:
            threading.Timer(fate.after_s, _made_late, (call, fate.times)).start()
        return TunnelCall(actor, future, fate.has_reply)


def _made_late(call: Callable[[], Future[Any]], times: int) -> None:
    with suppress(PulsarException):
        for _ in range(times):
            call()
