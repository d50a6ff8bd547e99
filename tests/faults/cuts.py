"""Carriers of this process that break: lanes are cut inside a packet, tunnel calls lost or repeated."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Sequence
from typing import Any

from pulsar_ray.errors import NotConnected
from pulsar_ray.lane.lane_writer import LaneWriter
from pulsar_ray.transport.cluster import Cluster
from pulsar_ray.transport.ray_cluster import RayCluster

LOST_CALLS = 0.02
REPEATED_CALLS = 0.02


class CarrierCuts:
    """From its making on: now and then a lane's next write sends a part of its bytes and then no more."""

    def __init__(self, seed: int, mean_pause_s: float) -> None:
        self._rng = random.Random(seed)
        self._mean_pause_s = mean_pause_s
        self._is_armed = False
        self.cuts = 0
        self._patch_lanes()
        self._patch_tunnel()
        threading.Thread(target=self._arm, daemon=True).start()

    def _arm(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(self._rng.expovariate(1 / self._mean_pause_s))
            self._is_armed = True

    def _patch_lanes(self) -> None:
        write_some = LaneWriter._write_some

        def cutting(outgoing: LaneWriter, buffers: Sequence[Any], flags: int) -> Sequence[Any]:
            if not self._is_armed:
                return write_some(outgoing, buffers, flags)
            self._is_armed = False
            self.cuts += 1
            whole = b"".join(bytes(buffer) for buffer in buffers)
            outgoing._sock.send(whole[: self._rng.randrange(len(whole))], socket.MSG_DONTWAIT)
            outgoing._sock.shutdown(socket.SHUT_RDWR)
            raise BrokenPipeError("cut by the test")

        LaneWriter._write_some = cutting  # type: ignore[method-assign,assignment]

    def _patch_tunnel(self) -> None:
        exchange, exchange_result = RayCluster.exchange, RayCluster.exchange_result

        def losing(cluster: Cluster, *args: Any) -> Any:
            chance = self._rng.random()
            if chance < LOST_CALLS:
                self.cuts += 1
                raise NotConnected("lost on its way by the test")
            if chance < LOST_CALLS + REPEATED_CALLS:
                exchange(cluster, *args)  # type: ignore[arg-type]
            return exchange(cluster, *args)  # type: ignore[arg-type]

        def losing_result(cluster: Cluster, *args: Any) -> Any:
            result = exchange_result(cluster, *args)  # type: ignore[arg-type]
            if self._rng.random() < LOST_CALLS:
                self.cuts += 1
                raise NotConnected("the answer was lost by the test")
            return result

        RayCluster.exchange = losing  # type: ignore[method-assign,assignment]
        RayCluster.exchange_result = losing_result  # type: ignore[method-assign,assignment]
