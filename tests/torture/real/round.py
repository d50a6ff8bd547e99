"""One round on a real Ray: clients in processes, strikes, a new start of the cluster, calm, and a verdict."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pulsar_ray.errors import NotOurDataDirectory
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.testing.waiting import wait_until
from tests.faults.history.checker import judge
from tests.faults.history.operations import ClockShown, FaultDone, note
from tests.faults.journal import Journal, iterate_journal
from tests.torture.clients import ERROR
from tests.torture.plan import LEASE_S
from tests.torture.real.client_process import CONSUMERS
from tests.torture.real.cluster import RealCluster, signal_process
from tests.torture.real.plan import (
    DEADLY,
    KILL_ACTOR,
    KILL_CLIENT,
    KILL_GCS,
    KILL_RAYLET,
    KILL_WORKER,
    STOP_ACTOR,
    STOP_CLIENT,
    STOP_GCS,
    STOP_RAYLET,
    Strike,
    plan_of,
)
from tests.torture.real.processes import END_S, Client, ClosingScene, clients_of, open_scene
from tests.torture.round import SETTINGS, RoundResult
from tests.torture.scenes import Scene, scene_of

SCENES = (
    *("every-type", "keyed", "delayed", "letters", "retries", "deduplicated", "chunks"),
    *("fenced", "waiting", "sought", "expiring", "sleepy", "administered", "compacted"),
)
"""Those of a real round: all that are stored."""
IDLE_S = 1.0
"""After which actors sleep, in every other round of scenes that are not sleepy."""
START_S = 180.0
LOOK_S = 0.05


def scenes_of(seed: int, names: Sequence[str]) -> list[Scene]:
    """The scenes of these names that a real round can have, else one that the seed chooses."""
    wanted = [name for name in SCENES if name in names]
    return [scene_of(name) for name in wanted or [random.Random(seed).choice(SCENES)]]


def settings_of(seed: int, scenes: Sequence[Scene]) -> dict[str, object]:
    """The broker's settings in a round."""
    sleeps = any(scene.is_sleepy for scene in scenes) or random.Random(seed + 1).random() < 0.5
    idle_s = IDLE_S if sleeps else 0
    return {**SETTINGS, "idle_actor_passivation_seconds": idle_s}


class RealRound:
    """Runs scenes under the strikes of a seed."""

    def __init__(self, directory: Path, seed: int, scenes: Sequence[Scene]) -> None:
        self.history, self.data, self._logs = (directory / name for name in ("history", "data", "logs"))
        for path in (self.history, self.data, self._logs):
            path.mkdir(parents=True)
        self.seed = seed
        self.scenes = scenes
        self.strikes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.journal = Journal(self.history / "run.journal")
        self.cluster = RealCluster(self.data, self._logs, settings_of(seed, scenes))
        self._clients: list[Client] = []
        self._stopped: dict[int, float] = {}
        """By process, when it goes on."""
        self._dead_until = 0.0
        """When the cluster starts again, 0 while it runs."""

    # --- the course of a round -----------------------------------------------------------------------------

    def run(self, plan: Sequence[Strike]) -> None:
        """Work under the strikes, and come to an end. Raises AssertionError."""
        try:
            self.cluster.start()
            for scene in self.scenes:
                open_scene(scene, self.cluster.address, self.history, self._logs)
                self._clients += clients_of(scene, self.cluster.address, self.seed, self.history, self._logs)
            wait_until(self._works, START_S, "the first deliveries")
            self._suffer(plan)
            self._come_to_an_end()
            self.cluster.stop()
        finally:
            self._let_go(float("inf"))
            for client in self._clients:
                client.program.kill()
            self.cluster.kill()

    def _works(self) -> bool:
        self._look()
        received = [
            path
            for path in self.history.glob("*.journal")
            if any(record.kind == "Received" for record in iterate_journal(path))
        ]
        return len(received) >= len(self.scenes)

    def _suffer(self, plan: Sequence[Strike]) -> None:
        began = time.monotonic()
        for strike in plan:
            while time.monotonic() < began + strike.at_ms / 1000:
                began += self._pass_time()
            self._strike(strike)
        while self._dead_until:
            self._pass_time()

    def _pass_time(self) -> float:
        """Wait a little; seconds in which there was no cluster because it was started again."""
        time.sleep(LOOK_S)
        self._let_go(time.monotonic())
        self._look()
        if not self._dead_until and not self.cluster.is_up:
            self._note("end of the cluster by itself", "")
            self._dead_until = time.monotonic()
        if not self._dead_until or time.monotonic() < self._dead_until:
            return 0.0
        return self._start_again()

    def _start_again(self) -> float:
        began = time.monotonic()
        self._let_go(float("inf"))
        self.cluster.kill()
        self.cluster.start()
        for client in self._clients:
            client.start_again(self.cluster.address)
        self._dead_until = 0.0
        return time.monotonic() - began

    def _look(self) -> None:
        """A client's process may end by itself only where it has lost its cluster."""
        for client in self._clients:
            if client.program.has_ended and self.cluster.is_up:
                self.wrong.append(f"{client.name} ended by itself:\n{client.program.said()[-4000:]}")
                client.start_again(self.cluster.address)

    # --- strikes -------------------------------------------------------------------------------------------

    def _strike(self, strike: Strike) -> None:
        kind = strike.kind
        if kind in DEADLY:
            self._end_cluster(strike)
        elif kind in (KILL_CLIENT, STOP_CLIENT):
            client = self._clients[strike.pick % len(self._clients)]
            if kind == KILL_CLIENT:
                self._note(kind, client.name)
                client.start_again(self.cluster.address)
            else:
                self._stop(strike, client.program.pid, client.name)
        elif kind == STOP_RAYLET:
            self._stop(strike, self.cluster.raylet, "raylet")
        elif kind == STOP_GCS:
            self._stop(strike, self.cluster.gcs, "gcs")
        else:
            self._strike_worker(strike)

    def _strike_worker(self, strike: Strike) -> None:
        cluster = self.cluster
        found = cluster.other_workers() if strike.kind == KILL_WORKER else cluster.actors()
        if not found:
            return
        pid, name = sorted(found)[strike.pick % len(found)]
        if strike.kind == STOP_ACTOR:
            self._stop(strike, pid, name)
        elif signal_process(pid, signal.SIGKILL):
            assert strike.kind in (KILL_ACTOR, KILL_WORKER)
            self._note(strike.kind, name)

    def _stop(self, strike: Strike, pid: int, name: str) -> None:
        if pid not in self._stopped and signal_process(pid, signal.SIGSTOP):
            self._stopped[pid] = time.monotonic() + strike.duration_ms / 1000
            self._note(strike.kind, f"{name} for {strike.duration_ms} ms")
            if strike.duration_ms > LEASE_S * 1000:
                self.strikes[f"{strike.kind}, longer than its lease"] += 1

    def _let_go(self, now_s: float) -> None:
        for pid in [pid for pid, due_s in self._stopped.items() if due_s <= now_s]:
            del self._stopped[pid]
            signal_process(pid, signal.SIGCONT)

    def _end_cluster(self, strike: Strike) -> None:
        """The rest goes on for a while, as it can; then the cluster is started on the same directory."""
        if strike.kind == KILL_RAYLET:
            signal_process(self.cluster.raylet, signal.SIGKILL)
        elif strike.kind == KILL_GCS:
            signal_process(self.cluster.gcs, signal.SIGKILL)
        else:
            for client in self._clients:
                client.program.kill()
            self.cluster.kill()
        self._note(strike.kind, f"and {strike.duration_ms} ms until it is started again")
        self._dead_until = time.monotonic() + strike.duration_ms / 1000

    def _note(self, kind: str, target: str) -> None:
        self.strikes[kind] += 1
        note(self.journal, FaultDone(kind, target))

    # --- the end -------------------------------------------------------------------------------------------

    def _come_to_an_end(self) -> None:
        """Producers first; consumers when they have all that is stored; then the rest is looked at."""
        self._let_go(float("inf"))
        consumers = [client for client in self._clients if client.spec.role == CONSUMERS]
        self._end([client for client in self._clients if client not in consumers])
        for client in consumers:
            client.calm()
        closing = [
            ClosingScene(scene, self.cluster.address, self.history, self._logs) for scene in self.scenes
        ]
        for each in closing:
            if missing := each.wait_caught_up():
                self.wrong.append(f"{each.scene.name}: {missing}")
        self._end(consumers)
        self.wrong += [f"looking at {each.scene.name} {wrong}" for each in closing if (wrong := each.end())]

    def _end(self, clients: list[Client]) -> None:
        for client in clients:
            client.program.tell_end()
        for client in clients:
            if wrong := client.program.wait_end(END_S):
                self.wrong.append(f"{client.name} {wrong}")
            self._clients.remove(client)


def run_real_round(directory: Path, seed: int, seconds: float, scenes: Sequence[Scene]) -> RoundResult:
    """Run scenes on a Ray of their own, and judge them. The directory keeps the history and the data."""
    result = RoundResult()
    real = RealRound(directory, seed, scenes)
    try:
        real.run(plan_of(seed, int(seconds * 1000)))
    except Exception as error:  # noqa: BLE001 - the history is judged all the same
        result.violations.append(f"the round did not end well: {error!r}")
    note(real.journal, ClockShown(time.time_ns() // 1_000_000))
    result.faults.update(real.strikes)
    result.violations += real.wrong
    verdict = judge(real.history)
    result.operations.update(verdict.operations)
    result.violations += [str(violation) for violation in verdict.violations]
    with suppress(NotOurDataDirectory):  # nothing began, as is told above
        result.violations += [f"verify: {damage}" for damage in verify_directory(real.data).damages]
    result.errors.update(_errors_in(real.history))
    return result


def _errors_in(history: Path) -> Counter[str]:
    """The errors that ended clients' lives."""
    return Counter(
        name
        for path in history.glob("*.journal")
        for record in iterate_journal(path)
        if record.kind == ERROR
        for name in record.values
    )
