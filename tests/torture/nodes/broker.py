"""A broker of several nodes in this process, which are lost with their disks, come back, and are drained."""

from __future__ import annotations

import shutil
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.actors import controller
from pulsar_ray.actors.stores import move_carrier, resting_stores, store_shipping
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.broker.catalog import node_losses
from pulsar_ray.errors import NotConnected, PulsarException
from pulsar_ray.journal import life_runner, store_journal
from pulsar_ray.journal.life import uploads
from pulsar_ray.maintenance.remote_restore import restore_from
from pulsar_ray.managed_ledger.store.store_identity import read_identity
from pulsar_ray.testing.stub_actors import HOST
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import store_name
from tests.faults.history.operations import FaultDone, note
from tests.faults.journal import Journal
from tests.torture.broker import TorturedBroker
from tests.torture.nodes.bucket import TorturedBucket
from tests.torture.nodes.plan import (
    BALANCE,
    BUCKET_FAULTS,
    COME_BACK,
    CUT_OFF,
    DRAIN,
    FETCH_BACK,
    KILL_STORE,
    LOSE_ALL,
    LOSE_CATALOG,
    LOSE_NODE,
    MOVE,
    OFFLOAD,
    REST,
    RESTED,
    NodeFault,
)
from tests.torture.plan import Fault

MORE_NODES = 2
LEAST_NODES = 2
ASK_S = 12.0
CALM_S = 150.0
REST_DEADLINE_S = 20.0
AGAIN_S = 0.3
MOVED_AWAY = "was deleted or replaced while its partition ran"
"""It was begun where the catalog had it, and a controller died while it moved."""
SETTINGS = {
    "node_loss_seconds": 1,
    "remote_lag_seconds": 3,
    "segment_size_bytes": 64 * 1024,
    "index_checkpoint_bytes": 64 * 1024,
}


class NodesBroker(TorturedBroker):
    """A broker of three nodes or more, whose stores ship to `bucket` beside the data directories."""

    expected_errors = (*TorturedBroker.expected_errors, MOVED_AWAY)

    def __init__(
        self, directory: Path, journal: Journal, seed: int, plan: Sequence[NodeFault], **settings: Any
    ) -> None:
        self.bucket = TorturedBucket(seed)
        self.place = directory.with_name("bucket")
        self._plan = plan
        self._nodes_lock = threading.RLock()
        self._hosts = list[str]()
        """Those that live."""
        self._last_host = 0
        url = self.place.as_uri()
        super().__init__(directory, journal, seed, **{**SETTINGS, **settings, "remote_url": url})

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have disk and object store fail, and all that is looked at now and then looked at often."""
        with self.disk.installed(), self.bucket.installed(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(controller, "WATCH_INTERVAL_S", 0.5)
            patch.setattr(store_shipping, "LOOK_INTERVAL_S", 0.5)
            patch.setattr(store_shipping, "UNSEALED_LOOK_S", 0.5)
            patch.setattr(node_losses, "FIRST_RETRY_S", 0.5)
            patch.setattr(node_losses, "LONGEST_RETRY_S", 2.0)
            patch.setattr(life_runner, "LOOK_SECONDS", 1.0)
            often = partial(life_runner.LifeRunner, checkpoint_objects=25)
            patch.setattr(store_journal, "LifeRunner", often)
            patch.setattr(uploads, "PIECE_BYTES", 16 * 1024)
            patch.setattr(move_carrier, "KEEP_SOURCE_S", 0.3)
            patch.setattr(resting_stores, "REST_AFTER_S", 0.3)
            patch.setattr(Stores, "let_rest", self._counted(Stores.let_rest))
            yield

    def _counted(self, let_rest: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def counted(stores: Stores, store_id: str) -> None:
            await let_rest(stores, store_id)
            with self._lock:
                self.counts[RESTED] += 1

        return counted

    def _start(self) -> None:
        """Begin a life on empty disks, with all that former ones have shipped."""
        with self.bucket.calm():
            if self._lives:
                restore_from(self.place.as_uri(), self.directory, takes_over=True)
            super()._start()
            self._hosts = [HOST, *(self._new_host() for _ in range(MORE_NODES))]
            # A fault that has begun may end the controller of the next life; what is missed then comes later.
            expected = () if self._lives == 1 else (PulsarException,)
            for host in self._hosts[1:]:
                with suppress(*expected):
                    self.cluster.add_node(host)
            for host in self._hosts:
                with suppress(*expected):
                    self.cluster.wait_shipping(host)

    def _new_host(self) -> str:
        self._last_host += 1
        return f"n{self._last_host}"

    # --- faults -------------------------------------------------------------------------------------

    def suffer(self, plan: Sequence[Fault], stop: threading.Event, began: Callable[[], float]) -> None:
        """See TorturedBroker.suffer; nodes suffer beside."""
        of_nodes = threading.Thread(target=self._suffer_nodes, args=(stop, began), daemon=True)
        of_nodes.start()
        super().suffer(plan, stop, began)
        of_nodes.join()

    def _suffer_nodes(self, stop: threading.Event, began: Callable[[], float]) -> None:
        for number, fault in enumerate(self._plan):
            if stop.wait(max(0.0, fault.at_ms / 1000 - began())):
                return
            thread = threading.Thread(target=self._inject_node, args=(-1 - number, fault), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _inject_node(self, number: int, fault: NodeFault) -> None:
        try:
            with suppress(PulsarException, RuntimeError, KeyError):
                undo = self._begin_node(fault)
                if undo is None:
                    return
                with self._lock:
                    self.counts[fault.kind] += 1
                    self._undo[number] = undo
                note(self._journal, FaultDone(fault.kind, f"for {fault.duration_ms} ms"))
                threading.Event().wait(fault.duration_ms / 1000)
                self._end(number)
        except Exception:  # noqa: BLE001 - a fault that cannot be injected is a defect of the suite
            self.fatal_errors.append(f"fault {fault}: {traceback.format_exc()}")

    def _begin_node(self, fault: NodeFault) -> Callable[[], None] | None:
        if fault.kind in BUCKET_FAULTS:
            return self.bucket.begin(fault.kind)
        if fault.kind in (LOSE_NODE, LOSE_CATALOG, COME_BACK, CUT_OFF):
            return self._lose(fault)
        if fault.kind == LOSE_ALL:
            return self._lose_all()
        if fault.kind == KILL_STORE:
            return self._kill_store(fault)
        topic, _ = self.targets[fault.topic % len(self.targets)]
        if fault.kind in (OFFLOAD, FETCH_BACK):
            with self.admin() as admin:
                (admin.topics.offload if fault.kind == OFFLOAD else admin.topics.fetch_back)(topic)
            return _nothing
        return self._move(fault, topic)

    def _move(self, fault: NodeFault, topic: str) -> Callable[[], None] | None:
        if fault.kind == BALANCE:
            return _nothing if self._ask("balance") else None
        stores = [each["storeId"] for each in self._nodes() if each["storeId"] and not each["reason"]]
        if not stores:
            return None
        store = stores[fault.which % len(stores)]
        if fault.kind == MOVE:
            return _nothing if self._ask("move", topic, store) else None
        assert fault.kind in (DRAIN, REST)
        self._ask("drain", store)
        if fault.kind == REST:
            # As far as other faults let what it has leave.
            with suppress(AssertionError, ValueError):
                wait_until(partial(self._rests, store), REST_DEADLINE_S, f"{store} rests")
        return partial(self._undrain, store)

    def _rests(self, store: str) -> bool:
        threading.Event().wait(AGAIN_S)
        with suppress(PulsarException, KeyError):
            (node,) = (each for each in self._nodes() if each["storeId"] == store)
            actor = store_name(self.cluster.actors.node_on(node["host"])[:8])
            return node["state"] == "drained" and self.cluster.actors.present(actor) is None
        return False

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self.cluster.controller("call_part", "moves", method, *arguments, timeout_s=ASK_S)

    def _nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self.cluster.controller("nodes", timeout_s=ASK_S)
        return nodes

    def _undrain(self, store: str) -> None:
        for _ in range(10):
            with suppress(PulsarException):
                self._ask("undrain", store)
                return

    def _kill_store(self, fault: NodeFault) -> Callable[[], None] | None:
        with self._nodes_lock:
            host = self._hosts[fault.which % len(self._hosts)]
            store = self.cluster.actors.store_on(host)
            if store is None:
                return None
            store.kill()
            with suppress(NotConnected):
                self.cluster.actors.life(store_name(self.cluster.actors.node_on(host)[:8]))
        return _nothing

    def _lose(self, fault: NodeFault) -> Callable[[], None] | None:
        with self._nodes_lock:
            if len(self._hosts) <= LEAST_NODES:
                return None
            catalog = self.cluster.catalog_host
            others = [host for host in self._hosts if host != catalog]
            host = catalog if fault.kind == LOSE_CATALOG else others[fault.which % len(others)]
            if host == catalog and not any(map(self._is_taken_in, others)):
                return None
            self._hosts.remove(host)
            life = self.cluster
            if fault.kind == CUT_OFF:
                life.cut_off_node(host)
                return partial(self._end_cut_off, life, host)
            disk = life.lose_node(host)
            if fault.kind != COME_BACK:
                shutil.rmtree(disk, ignore_errors=True)
            if host == catalog:
                self._begin_controller(fault.which)
        return partial(self._join, life, host if fault.kind == COME_BACK else "")

    def _lose_all(self) -> Callable[[], None]:
        def end_nodes(life: StubCluster) -> None:
            for host in list(life.actors.nodes.values()):
                shutil.rmtree(life.lose_node(host), ignore_errors=True)

        with self._nodes_lock:
            self.restart(end_nodes)
        return _nothing

    def _end_cut_off(self, life: StubCluster, host: str) -> None:
        with self._nodes_lock:
            if self.cluster is life:
                life.lose_node(host)
                self._join(life, host)

    def _is_taken_in(self, host: str) -> bool:
        identity = read_identity(self.cluster.actors.directory_of(host))
        return identity is not None and bool(identity.cluster_id)

    def _begin_controller(self, which: int) -> None:
        end = time.monotonic() + CALM_S
        while time.monotonic() < end:
            hosts = [host for host in self._hosts if self._is_taken_in(host)]
            try:
                self.cluster.begin_controller(hosts[which % len(hosts)])
            except PulsarException:
                which += 1
                threading.Event().wait(AGAIN_S)
            else:
                return
        self.fatal_errors.append("no other controller begins")

    def _join(self, life: StubCluster, host: str) -> None:
        """Have a lost node come back, or for "" a new one join, unless all were lost meanwhile."""
        with self._nodes_lock:
            if self.cluster is not life:
                return
            host = host or self._new_host()
            self._hosts.append(host)
            with suppress(PulsarException):  # it is found later
                self.cluster.add_node(host)

    def heal(self) -> None:
        """See TorturedBroker.heal; behind it each partition is in a store that is there.

        An operator gives up what a lost store had not begun to ship: nothing of it was confirmed, or all of
        it within the lag.
        """
        self.bucket.heal()
        super().heal()
        self.bucket.heal()
        names = [name for name, _ in self.targets if name.startswith("persistent:")]

        def away() -> list[str]:
            with suppress(PulsarException):
                nodes = self._nodes()
                for lost in (each["storeId"] for each in nodes if "never shipped" in each["reason"]):
                    with self.admin() as admin:
                        admin.stores.forget(lost, accept_loss=True)
                there = {each["storeId"] for each in nodes if not each["reason"]}
                return [name for name in names if self.cluster.store_of(name) not in there]
            return names

        wait_until(lambda: not away(), CALM_S, "all partitions are in stores that are there")

    def describe(self) -> None:
        """Print how far each store is shipped, and why nothing runs."""
        super().describe()
        for error in self.fatal_errors:
            print(error, file=sys.stderr)
        if self._cluster.present is None:
            return
        for host in self._hosts:
            store = self.cluster.actors.store_on(host)
            journal = None if store is None else store.parts.shipping.journal
            status = None if journal is None else journal.status()
            print(f"{host}: {status}", file=sys.stderr)

    @property
    def directories(self) -> list[Path]:
        """The data directories of nodes that live."""
        return [self.cluster.actors.directory_of(host) for host in self._hosts]


def _nothing() -> None:
    pass
