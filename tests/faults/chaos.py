"""Kills and freezes at random, from a seed."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Sequence

import ray

from tests.faults.processes import ClientProcess
from tests.running_broker import Broker

KILLED_SHARE = 0.6
LONGEST_ACTOR_FREEZE_S = 9.0
LONGEST_CLIENT_FREEZE_S = 5.0
SHORTEST_PAUSE_S = 0.6
LONGEST_PAUSE_S = 2.4
PID_DEADLINE_S = 2.0
KINDS = {"kill", "freeze"}


class Chaos:
    """Strikes actors by name and client processes until told to stop; prints what it does."""

    def __init__(
        self, broker: Broker, seed: int, actors: Sequence[str], clients: Sequence[ClientProcess]
    ) -> None:
        self._broker = broker
        self._rng = random.Random(seed)
        self._actors = list(actors)
        self._clients = list(clients)
        self._thaws: list[tuple[float, str, int]] = []
        self._frozen_clients: list[tuple[float, ClientProcess]] = []
        self._pause = threading.Event()
        self._began = time.monotonic()
        self.strikes: dict[str, int] = {}

    def run(self, duration_s: float) -> None:
        """Strike now and then for so long, and until something was killed and something frozen.

        At the end nothing is frozen any more.
        """
        end = time.monotonic() + duration_s
        try:
            while time.monotonic() < end or self.strikes.keys() != KINDS:
                for client in self._clients:
                    client.check()
                self._strike()
                next_strike = time.monotonic() + self._rng.uniform(SHORTEST_PAUSE_S, LONGEST_PAUSE_S)
                while time.monotonic() < next_strike:
                    self._pause.wait(0.05)
                    self._thaw(time.monotonic())
        finally:
            self._thaw(float("inf"))

    def _strike(self) -> None:
        kills = self._rng.random() < KILLED_SHARE
        targets: list[str | ClientProcess] = [*self._actors, *self._clients]
        target = self._rng.choice(targets)
        if isinstance(target, ClientProcess):
            self._strike_client(target, kills)
        elif all(name != target for _, name, _ in self._thaws):
            self._strike_actor(target, kills)

    def _strike_actor(self, name: str, kills: bool) -> None:
        try:
            pid = self._broker.pid(name, PID_DEADLINE_S)
        except (ray.exceptions.RayError, ValueError):
            return  # it is restarting already
        duration_s = 0.0 if kills else self._rng.uniform(0.5, LONGEST_ACTOR_FREEZE_S)
        try:
            os.kill(pid, signal.SIGKILL if kills else signal.SIGSTOP)
        except ProcessLookupError:
            return  # it has just ended
        if kills:
            self._note("kill", name)
        else:
            self._thaws.append((time.monotonic() + duration_s, name, pid))
            self._note("freeze", name, f"{duration_s:.1f} s")

    def _strike_client(self, client: ClientProcess, kills: bool) -> None:
        if any(frozen is client for _, frozen in self._frozen_clients):
            return
        if kills:
            self._note("kill", client.tag)
            client.kill()
            client.start()
        else:
            duration_s = self._rng.uniform(0.5, LONGEST_CLIENT_FREEZE_S)
            client.freeze()
            self._frozen_clients.append((time.monotonic() + duration_s, client))
            self._note("freeze", client.tag, f"{duration_s:.1f} s")

    def _thaw(self, now: float) -> None:
        for due in [thaw for thaw in self._thaws if thaw[0] <= now]:
            self._thaws.remove(due)
            self._broker.thaw(due[2])
        for frozen in [frozen for frozen in self._frozen_clients if frozen[0] <= now]:
            self._frozen_clients.remove(frozen)
            frozen[1].thaw()

    def _note(self, what: str, target: str, how_long: str = "") -> None:
        self.strikes[what] = self.strikes.get(what, 0) + 1
        print(f"{time.monotonic() - self._began:6.1f} s  {what} {target} {how_long}", flush=True)
