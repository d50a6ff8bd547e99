"""A broker in this process that suffers what a plan says; its servers, files and lanes are the real ones."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from pulsar_ray.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotConnected, PulsarException
from pulsar_ray.lane.address import UnixAddress
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE
from pulsar_ray.testing.faults import DOWN, UP, LaneCutter
from pulsar_ray.testing.lossy_tunnel import PERFECT, TunnelFaults
from pulsar_ray.testing.stub_actor import StubActor
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.transport.actor_names import (
    dispatcher_name,
    partition_name,
    topic_of_actor,
)
from pulsar_ray.transport.cluster import AttachReply, Cluster
from tests.faults.history.operations import FaultDone, note
from tests.faults.journal import Journal
from tests.torture.catalog_disk import CATALOG_FAULTS, CatalogDisk
from tests.torture.clock import JumpingClock
from tests.torture.disk import DISK_FAULTS, TorturedDisk
from tests.torture.plan import (
    CLOCK_BACK,
    CLOCK_FORWARD,
    CUT,
    DISPATCHER,
    DISPATCHERS_SLEEP,
    KILL,
    KILL_CONTROLLER,
    LONG_STOP,
    LOSE_ANSWER,
    LOSE_CONTROLLER_ANSWER,
    LOSE_REQUEST,
    PARTITION,
    RESTART,
    SILENCE,
    SLEEP,
    STOP,
    TRACKER,
    WHOLE,
    Fault,
    name_of,
)

TUNNEL_FAULTS = TunnelFaults(lose_call=0.02, lose_reply=0.02, repeat=0.04, delay=0.02)
CUTTER_SHARE = 0.5
OPERATION_S = 12
RESTART_S = 120
SLEEPY_PAUSE_S = 0.1
CLOCK_WAS_SET_BACK = "the tracker has dropped rows that this dispatcher has left to it"
"""For which a dispatcher starts anew, on purpose."""


def _nothing_more(_: StubCluster) -> None:
    pass


class Successive:
    """The Cluster protocol, carried out by the broker's present life.

    Between two lives calls fail, but for those that never do in a client of Ray: what they are for begins
    anew with the next life.
    """

    def __init__(self) -> None:
        self.present: StubCluster | None = None

    def forget(self, address: str) -> None:
        """Do nothing: names are looked up anew each time."""

    def is_starting(self, address: str) -> bool:
        """As StubCluster.is_starting."""
        del address
        return False

    def report_silent(self, address: str) -> None:
        """As Cluster.report_silent; a broker that does not run has nobody who could be silent."""
        if (present := self.present) is not None:
            present.report_silent(address)

    def __getattr__(self, name: str) -> Any:
        present = self.present
        if present is None:
            raise NotConnected("the broker is restarting")
        return getattr(present, name)


class TorturedBroker:
    """Serves `directory`; `targets` are (partition, durable subscriptions) that faults choose from."""

    expected_errors: tuple[str, ...] = (CLOCK_WAS_SET_BACK,)
    """Texts of errors that end an actor, and are no defects."""

    def __init__(self, directory: Path, journal: Journal, seed: int, **settings: Any) -> None:
        rng = random.Random(seed)
        self.directory = directory
        self.seed = seed
        self._journal = journal
        self.clock = JumpingClock()
        self.disk = TorturedDisk(seed)
        self.catalog_disk = CatalogDisk(directory / CATALOG_FILE)
        self.counts: Counter[str] = Counter()
        self.fatal_errors: list[str] = []
        self.targets: list[tuple[str, Sequence[str]]] = []
        self._settings = Settings(
            **{
                "reattach_grace_seconds": 1.0,
                "new_topic_retention_seconds": 0,
                **settings,
                "data_dir": str(directory),
            }
        )
        self._rng = random.Random(seed + 1)
        self._reads_files = rng.random() < 0.5
        self._lives = 0
        self._lock = threading.Lock()
        self._cutters: list[LaneCutter] = []
        self._undo: dict[int, Callable[[], None]] = {}
        self._threads: list[threading.Thread] = []
        self._clients: list[Client] = []
        self._cluster = Successive()
        self._start()

    @property
    def cluster(self) -> StubCluster:
        """The present life."""
        present = self._cluster.present
        if present is None:
            raise NotConnected("the broker is restarting")
        return present

    def _start(self) -> None:
        self._lives += 1
        cluster = StubCluster(
            self.directory,
            self._settings,
            reads_files=self._reads_files,
            faults=TUNNEL_FAULTS,
            seed=self.seed + self._lives,
            clock=self.clock,
            disk=self.disk,
        )
        cluster.edit_attach = self._through_a_cutter
        self._cluster.present = cluster

    def _through_a_cutter(self, reply: AttachReply) -> AttachReply:
        with self._lock:
            if reply.unix_path is None or self._rng.random() >= CUTTER_SHARE:
                return reply
            cutter = LaneCutter(UnixAddress(reply.unix_path), Path(reply.unix_path).parent)
            self._cutters.append(cutter)
        return dataclasses.replace(reply, unix_path=cutter.address.path)

    def client(self, transport: str, operation_s: int = OPERATION_S, **arguments: Any) -> Client:
        """A client with a session of its own, as another process would have."""
        client = Client._on(
            cast("Cluster", self._cluster),
            transport=transport,
            operation_timeout_seconds=operation_s,
            **arguments,
        )
        with self._lock:
            self._clients.append(client)
        return client

    def admin(self) -> Admin:
        """An administrator; its calls fail while the broker restarts."""
        return Admin._on(cast("Cluster", self._cluster))

    def bulk_cluster(self) -> Cluster:
        """For readers of ranges."""
        return cast("Cluster", self._cluster)

    # --- faults --------------------------------------------------------------------------------------------

    def suffer(self, plan: Sequence[Fault], stop: threading.Event, began: Callable[[], float]) -> None:
        """Carry out a plan, each fault in a thread of its own; returns at its end, or once told to stop."""
        for number, fault in enumerate(plan):
            if stop.wait(max(0.0, fault.at_ms / 1000 - began())):
                return
            thread = threading.Thread(target=self._inject, args=(number, fault), daemon=True)
            thread.start()
            self._threads.append(thread)

    def keep_putting_to_sleep(self, partitions: Sequence[str], stop: threading.Event) -> None:
        """Let the actors of partitions leave whenever nothing is under way there, until told to stop."""
        while not stop.wait(SLEEPY_PAUSE_S):
            for partition in partitions:
                with suppress(PulsarException, RuntimeError, KeyError):
                    self._put_to_sleep(partition)

    def _put_to_sleep(self, partition: str) -> None:
        before = set(self.cluster.actors.names())
        kind = SLEEP
        if not self.cluster.put_to_sleep(partition, with_clients=True):
            if before <= set(self.cluster.actors.names()):
                return
            # Some had left when others turned out to be in use, and were woken at once.
            kind = DISPATCHERS_SLEEP
        with self._lock:
            self.counts[kind] += 1
        note(self._journal, FaultDone(kind, partition))

    def _inject(self, number: int, fault: Fault) -> None:
        topic, subscriptions = self.targets[fault.topic % len(self.targets)]
        subscription = subscriptions[fault.subscription % len(subscriptions)] if subscriptions else ""
        try:
            with suppress(PulsarException, RuntimeError, KeyError):
                undo = self._begin(fault, topic, subscription)
                if undo is None:
                    return
                self._note(fault, topic, subscription)
                with self._lock:
                    self._undo[number] = undo
                threading.Event().wait(fault.duration_ms / 1000)
                self._end(number)
        except Exception:  # noqa: BLE001 - a fault that cannot be injected is a defect of the suite
            self.fatal_errors.append(f"fault {fault}: {traceback.format_exc()}")

    def _note(self, fault: Fault, topic: str, subscription: str) -> None:
        name = name_of(fault.kind, fault.actor)
        with self._lock:
            self.counts[name] += 1
        note(self._journal, FaultDone(name, f"{topic} {subscription} for {fault.duration_ms} ms"))

    def _end(self, number: int) -> None:
        with self._lock:
            undo = self._undo.pop(number, None)
        if undo is not None:
            with suppress(PulsarException, RuntimeError, KeyError):
                undo()

    def _begin(self, fault: Fault, topic: str, subscription: str) -> Callable[[], None] | None:
        """Begin a fault; returns what ends it, or None if there was nothing to hit."""
        kind = fault.kind
        if kind in DISK_FAULTS:
            return self._fail_disk(fault, topic)
        if kind in (LOSE_REQUEST, LOSE_ANSWER, SILENCE):
            return self._spoil_lane(fault)
        if kind in WHOLE:
            return self._hit_all(fault)
        if kind == SLEEP:
            return _nothing if self.cluster.put_to_sleep(topic, with_clients=True) else None
        if fault.actor == TRACKER:
            return self._hit_tracker(kind, topic, subscription)
        return self._hit(fault, self._address(fault.actor, topic, subscription))

    def kill(self, address: str) -> None:
        """Kill an actor of the present life."""
        self.cluster.kill(address)
        with self._lock:
            self.counts["SIGKILL of a compactor"] += 1

    def _hit_all(self, fault: Fault) -> Callable[[], None] | None:
        if fault.kind in (CLOCK_FORWARD, CLOCK_BACK):
            self.clock.jump(fault.amount if fault.kind == CLOCK_FORWARD else -fault.amount)
            return lambda: self.clock.jump(0)
        if fault.kind in CATALOG_FAULTS:
            return self.catalog_disk.heal if self.catalog_disk.fail(fault.kind) else None
        if fault.kind == LOSE_CONTROLLER_ANSWER:
            self.cluster.control.answers_to_lose += 1
        elif fault.kind == KILL_CONTROLLER:
            with self.catalog_disk.healed():
                self.cluster.kill_controller()
        elif fault.kind == RESTART:
            self.restart()
        else:
            for address in self.cluster.addresses:
                self.cluster.kill(address)
        return _nothing

    def _address(self, actor: str, topic: str, subscription: str) -> str:
        if actor == PARTITION or not subscription:
            return partition_name(topic)
        return dispatcher_name(topic, subscription, durable=True)

    def _hit(self, fault: Fault, address: str) -> Callable[[], None] | None:
        actor = self._running(address)
        if actor is None:
            return None
        if fault.kind == KILL:
            self.cluster.kill(address)
            return _nothing
        if fault.kind in (STOP, LONG_STOP):
            actor.freeze()
            return actor.thaw
        assert fault.kind == CUT
        self.cluster.cut_lanes(address)
        return _nothing

    def _running(self, address: str) -> StubActor | None:
        actor: StubActor | None = self.cluster.actors.present(address)
        return actor

    def _hit_tracker(self, kind: str, topic: str, subscription: str) -> Callable[[], None] | None:
        tracker = self.cluster.tracker_of(topic, subscription)
        if tracker is None or tracker.is_dead:
            return None
        if kind == KILL:
            tracker.kill()
            return _nothing
        tracker.freeze()
        return tracker.thaw

    def _spoil_lane(self, fault: Fault) -> Callable[[], None] | None:
        with self._lock:
            living = [each for each in self._cutters if Path(each.address.path).exists()]
            if not living:
                return None
            cutter = living[fault.topic % len(living)]
        if fault.kind == SILENCE:
            cutter.stall()
        else:
            cutter.cut_after(UP if fault.kind == LOSE_REQUEST else DOWN, fault.amount)
        return cutter.heal

    def _fail_disk(self, fault: Fault, topic: str) -> Callable[[], None] | None:
        number = self.cluster.number_of(topic)
        if number is None:
            return None
        directory = self.directory / "p" / str(number)
        if fault.actor == DISPATCHER:
            directory = directory / "s"
        elif fault.actor == TRACKER:
            index = next(iter(sorted(directory.glob("s/*/delayed"))), None)
            if index is None:
                return None
            directory = index
        if not directory.exists():
            return None

        cluster = self.cluster

        def kill() -> None:
            for address in cluster.addresses:
                is_partition = address == partition_name(topic)
                if topic_of_actor(address) == topic and is_partition == (fault.actor == PARTITION):
                    cluster.kill(address)

        self.disk.fail(directory, fault.kind, kill)
        return lambda: self.disk.heal(directory)

    # --- ends ----------------------------------------------------------------------------------------------

    def restart(self, just_before: Callable[[StubCluster], object] = _nothing_more) -> None:
        """End everything at once, as a lost node does, and start again on the directory.

        `just_before` may do something to the life that ends, when no client can ask for anything any more.
        """
        with self._lock:
            ended, self._cluster.present = self._cluster.present, None
        if ended is None:
            return
        just_before(ended)
        with self.catalog_disk.healed():
            ended.close(kill=True)
        self._gather(ended)
        try:
            self._start()
        except Exception:
            self.fatal_errors.append(f"nothing begins again: {traceback.format_exc()}")
            raise

    def _gather(self, ended: StubCluster) -> None:
        for error in ended.fatal_errors:
            self.fatal_errors.append("".join(traceback.format_exception(error)))
        self.counts.update({f"tunnel: {kind}": count for kind, count in ended.tunnel.fates.counts.items()})

    def describe(self) -> None:
        """Print what a round that does not end well has to say of the broker."""
        for name, actor in self.cluster.actors.lives().items():
            for task in asyncio.all_tasks(actor.owner.loop):
                print(f"{name} waits at {_place_of(task)}", file=sys.stderr)

    def heal(self) -> None:
        """No more faults: nothing is frozen, silent, full or wrong."""
        for thread in self._threads:
            thread.join(RESTART_S)
        for number in list(self._undo):
            self._end(number)
        self.disk.heal()
        self.catalog_disk.heal()
        self.clock.jump(0)
        for cutter in self._cutters:
            cutter.heal()
        for actor in self.cluster.actors.lives().values():
            actor.thaw()
        self.cluster.tunnel.fates.faults = PERFECT

    def close(self) -> None:
        for client in self._clients:
            if client.is_usable:
                client.shutdown()
        cluster = self.cluster
        cluster.close()
        self._gather(cluster)
        for cutter in self._cutters:
            with suppress(OSError):
                cutter.close()


def _place_of(task: asyncio.Task[Any]) -> str:
    """Return where a task is, what it waits for first."""
    places, inner = [], cast("Any", task.get_coro())
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        inner = inner.cr_await
    return " < ".join(reversed(places))


def _nothing() -> None:
    pass
