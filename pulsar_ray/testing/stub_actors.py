"""Runs the actors of a stub cluster in this process.

They die and start again as processes would.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pulsar_ray.actors.actor_system import ActorHandle, ActorKind
from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerPersistenceError,
    Moved,
    NotAllowedError,
    NotConnected,
    PulsarException,
    Timeout,
)
from pulsar_ray.lane.waiting import within
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.stub_actor import StubActor, StubDispatcher, StubNonPersistentPartition, StubPartition
from pulsar_ray.testing.stub_compactor import StubCompactor
from pulsar_ray.testing.stub_process import AskedCluster
from pulsar_ray.testing.stub_store import StubStore
from pulsar_ray.testing.stub_tracker import StubTracker
from pulsar_ray.transport.actor_names import CONTROLLER, store_name, topic_of_actor
from pulsar_ray.transport.cluster import SubscriptionRequest

L = TypeVar("L")
NODE_ID = "stub-node"
HOST = "here"
_START_IT_NOT = ("idle", "retire", "health", "shutdown", "apply_policies")
"""No actor that was killed is started again for these methods.

Ray would start it by itself.
"""
_ANSWER_S = 5.0


class ControllerHandle:
    """The controller, as the actors know it."""

    raw = CONTROLLER

    def __init__(self, cluster: AskedCluster) -> None:
        self._cluster = cluster

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        """See ActorHandle."""
        timeout_s = _ANSWER_S if within_s is None else within_s
        return await asyncio.to_thread(
            partial(self._cluster.controller, method, *arguments, timeout_s=timeout_s)
        )

    def is_running(self) -> bool:
        """See ActorHandle."""
        return True

    def kill(self) -> None:
        """Do nothing: the test ends it."""

    def crash(self) -> None:
        """Do nothing: the test ends it."""


class StubHandle:
    """An ActorHandle, whose lives follow each other until the actor is ended for good."""

    def __init__(
        self,
        system: StubActors,
        kind: ActorKind,
        name: str,
        node_id: str | None,
        arguments: tuple[Any, ...],
    ) -> None:
        self.raw = name
        self.kind = kind
        self.name = name
        self.node_id = node_id or NODE_ID
        self.arguments = arguments
        self.life: Any = None
        """The present life, or the last one; None while it was never allowed to start."""
        self.has_ended = False
        self._system = system

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        """See ActorHandle."""
        what = f"{self.name}.{method}"
        copies = pickle.loads(pickle.dumps(arguments)) if self.kind is not ActorKind.STORE else arguments
        try:
            return await within(self._answer(method, copies), within_s)
        except asyncio.TimeoutError:
            raise Timeout(f"{what} is not answered within {within_s} s") from None

    async def _answer(self, method: str, arguments: tuple[Any, ...]) -> Any:
        life = self._system.life_for(self, starts=method not in _START_IT_NOT)
        answering = asyncio.wrap_future(life.start_call(method, arguments))
        answering.add_done_callback(_retrieved)  # also if its caller has ended meanwhile
        try:
            # A caller that waits no longer does not end the work of the actor.
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            if life.is_dead:
                raise NotConnected(f"{self.name}: the actor died") from None
            raise
        except OSError as error:  # as Ray's errors are translated
            raise BrokerPersistenceError(f"{self.name}: {error}: see to the disk") from None

    def is_running(self) -> bool:
        """See ActorHandle."""
        return not self.has_ended and self.life is not None and not self.life.is_dead

    def kill(self) -> None:
        """See ActorHandle; the name is free at once, and its files a moment later."""
        self._system.end(self)

    def crash(self) -> None:
        """See ActorHandle."""
        if self.life is not None:
            self.life.kill()


def _retrieved(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


class StubActors:
    """The ActorSystem of a stub cluster.

    An actor that was killed starts again when it is asked for something, unless it is `kept_down`. Settings
    that are `overridden` for a topic hold in place of its policies.
    """

    def __init__(
        self,
        settings: Settings,
        lane_directory: Path,
        clock: Clock,
        disk: Disk,
        check_runs: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._lane_directory = lane_directory
        self._clock = clock
        self._disk = disk
        self._check_runs = check_runs
        self.cluster: AskedCluster
        """The cluster that actors ask, once there is one."""
        self.lock = threading.RLock()
        self.handles: dict[str, StubHandle] = {}
        self.kept_down: set[str] = set()
        self.withholds_policies = False
        self.fatal_errors: list[BaseException] = []
        self.nodes = {NODE_ID: HOST}
        """The host of each node."""
        self._node_ids = {HOST: NODE_ID}
        self._roots = {NODE_ID: Path(settings.data_dir)}
        """The data directory of each node that there ever was."""
        self.data_dir = settings.data_dir
        """The path of all data directories, as the controller knows it."""
        self.drained: set[str] = set()
        self._overridden: dict[str, PolicyUpdate] = {}
        self._cut_off: dict[str, list[Any]] = {}
        self._ending: list[Any] = []
        """Lives of actors that were ended for good, and may still hold files."""

    # --- the ActorSystem --------------------------------------------------------------------------

    def create(self, kind: ActorKind, name: str, node_id: str | None, *arguments: Any) -> StubHandle:
        """See ActorSystem."""
        with self.lock:
            self._check_runs()
            handle = self.handles.get(name)
            if handle is None:
                handle = StubHandle(self, kind, name, node_id, arguments)
                if handle.node_id not in self.nodes:
                    handle.has_ended = True
                    return handle
                self.handles[name] = handle
                if name not in self.kept_down:
                    handle.life = self._born(handle, None)
            return handle

    def begin_controller(self, data_dir: str, settings: Settings, order: CatalogOrder) -> StubHandle:
        """Refuse: no store here begins one."""
        raise NotAllowedError("there is one controller here, which the test has begun")

    async def make_ready(self, node_id: str) -> float:
        """See ActorSystem; its actors need no processes."""
        return 0.0

    def find(self, name: str) -> ActorHandle | None:
        """See ActorSystem."""
        return ControllerHandle(self.cluster) if name == CONTROLLER else self.handles.get(name)

    def names(self) -> list[str]:
        """See ActorSystem."""
        return list(self.handles)

    def hosts(self) -> dict[str, str]:
        """See ActorSystem."""
        return dict(self.nodes)

    def draining(self) -> set[str]:
        """See ActorSystem."""
        return set(self.drained)

    # --- lives ------------------------------------------------------------------------------------

    def life_for(self, handle: StubHandle, *, starts: bool = True) -> Any:
        """The life that answers a call, begun anew if the last one was killed.

        Raises Moved once the actor has ended for good, NotConnected while it may not start.
        """
        with self.lock:
            self._check_runs()
            if handle.has_ended:
                raise Moved(f"{handle.name}: no such actor")
            if handle.is_running():
                return handle.life
            if not starts or handle.name in self.kept_down:
                raise NotConnected(f"{handle.name}: the actor is restarting")
            handle.life = self._born(handle, handle.life)
            return handle.life

    def life(self, name: str) -> Any:
        """The life of an actor by its name, as `life_for`."""
        handle = self.handles.get(name)
        if handle is None:
            raise Moved(f"{name}: no such actor")
        return self.life_for(handle)

    def present(self, name: str) -> Any:
        """The life of an actor that lives now; None if none does."""
        handle = self.handles.get(name)
        return handle.life if handle is not None and handle.is_running() else None

    def last(self, name: str) -> Any:
        """The present or last life of an actor; None if none has the name."""
        handle = self.handles.get(name)
        return None if handle is None else handle.life

    def lives(self) -> dict[str, StubActor]:
        """The present or last lives of partitions and dispatchers, by name."""
        return self._lives_of(StubActor)

    def trackers(self) -> dict[str, StubTracker]:
        """The present or last lives of trackers, by name."""
        return self._lives_of(StubTracker)

    def compactors(self) -> dict[str, StubCompactor]:
        """The present or last lives of what compacts partitions, by name."""
        return self._lives_of(StubCompactor)

    def _lives_of(self, kind: type[L]) -> dict[str, L]:
        lives = {name: handle.life for name, handle in list(self.handles.items())}
        return {name: life for name, life in lives.items() if isinstance(life, kind)}

    def end(self, handle: StubHandle) -> None:
        """End an actor for good. Thread-safe."""
        with self.lock:
            if handle.has_ended:
                return
            handle.has_ended = True
            if self.handles.get(handle.name) is handle:
                del self.handles[handle.name]
            life = handle.life
            if life is None:
                return
            if not isinstance(life, StubStore):
                self._ending.append(life)
        threading.Thread(target=self._end_life, args=(life,), name="end", daemon=True).start()

    def _end_life(self, life: Any) -> None:
        life.kill()
        life.wait_ended()
        with self.lock, suppress(ValueError):
            self._ending.remove(life)

    def end_named(self, topic: str) -> None:
        """End all actors of a partition for good, and wait until they have let go."""
        with self.lock:
            handles = [handle for name, handle in self.handles.items() if topic_of_actor(name) == topic]
        for handle in handles:
            handle.kill()
            if handle.life is not None:
                handle.life.wait_ended()

    def wait_ended(self, directory: str) -> None:
        """Wait until nobody that was ended holds a partition's directory."""
        with self.lock:
            lives = [life for life in self._ending if str(getattr(life, "directory", "")) == directory]
        for life in lives:
            life.wait_ended()

    def wait_all_ended(self) -> None:
        """Wait until nobody that was ended holds anything."""
        with self.lock:
            lives = list(self._ending)
        for life in lives:
            life.wait_ended()

    def runs_on(self, name: str, node_id: str) -> bool:
        """Whether an actor runs on a node."""
        handle = self.handles.get(name)
        return handle is not None and handle.node_id == node_id

    # --- nodes ------------------------------------------------------------------------------------

    def add_node(self, host: str) -> str:
        """Have a node join, perhaps again, and return its new id."""
        with self.lock:
            node_id = f"{len(self._roots)}-{host}"
            own = Path(self._settings.data_dir)
            self._roots[node_id] = own if host == HOST else own.with_name(f"{own.name}-{host}")
            self._node_ids[host] = node_id
            self.nodes[node_id] = host
            return node_id

    def node_on(self, host: str) -> str:
        """Return the last id of a host's node."""
        return self._node_ids[host]

    def host_of(self, node_id: str) -> str:
        """Return the host of a node that there is, or was last."""
        return next(host for host, last in self._node_ids.items() if last == node_id)

    def directory_of(self, host: str) -> Path:
        """Return the data directory of a host."""
        return self._roots[self._node_ids[host]]

    def lose_node(self, node_id: str) -> None:
        """End a node with all that runs there, at once and for good."""
        with self.lock:
            if node_id in self.nodes:
                self._forget_node(node_id)
            lives = self._cut_off.pop(node_id)
            self._ending += [life for life in lives if not isinstance(life, StubStore)]
        # Without its store it gives no receipt; whatever it did in that order could be one moment.
        for life in sorted(lives, key=lambda each: not isinstance(each, StubStore)):
            self._end_life(life)

    def cut_off(self, node_id: str) -> None:
        """Let nobody hear of a node but the clients of its processes, which live."""
        with self.lock:
            self._forget_node(node_id)
            for life in self._cut_off[node_id]:
                if isinstance(life, (StubActor, StubStore)):
                    life.is_cut_off = True

    def _forget_node(self, node_id: str) -> None:
        del self.nodes[node_id]
        handles = [each for each in self.handles.values() if each.node_id == node_id]
        for handle in handles:
            handle.has_ended = True
            del self.handles[handle.name]
        self._cut_off[node_id] = [each.life for each in handles if each.life is not None]

    def place_on(self, node_id: str, path: str) -> Path:
        """Return where a path in the data directory of a node lies in this machine."""
        root = self._roots[node_id]
        for other in self._roots.values():
            with suppress(ValueError):
                return root / Path(path).relative_to(other)
        raise ValueError(f"{path} is in the data directory of no node")

    def store_on(self, host: str) -> StubStore | None:
        """The present or last life of a host's store; None if it has none."""
        life: StubStore | None = self.last(store_name(self._node_ids[host][:8]))
        return life

    def _settings_on(self, node_id: str) -> Settings:
        """The settings of a node's processes, whose data directory lies elsewhere here."""
        return dataclasses.replace(self._settings, data_dir=str(self._roots[node_id]))

    def _born(self, handle: StubHandle, former: Any) -> Any:
        """Begin a life; `former` was the last one of this actor."""
        if handle.kind is ActorKind.STORE:
            if isinstance(former, StubStore):
                former.wait_ended()
            root, host = self._roots[handle.node_id], self.nodes[handle.node_id]
            return StubStore(handle.node_id, host, root, self._settings_on(handle.node_id), self)
        if handle.kind is ActorKind.TRACKER:
            return StubTracker(self._clock)
        if handle.kind is ActorKind.COMPACTOR:
            return StubCompactor()
        policies: PolicyUpdate = handle.arguments[-1]
        topic = topic_of_actor(handle.name)
        settings = self._settings_on(handle.node_id)
        shared = (settings, self.effective(topic, policies), self._lane_directory, self._clock)
        after = (former, *(life for life in self._ending if getattr(life, "address", "") == handle.name))
        wait_for = [life for life in after if life is not None]
        is_restarted = former is not None
        life: StubActor
        if handle.kind is ActorKind.DISPATCHER:
            request: SubscriptionRequest = handle.arguments[0]
            if is_restarted:
                request = request.after_restart()
            life = StubDispatcher(handle.name, request, self, *shared, wait_for, is_restarted=is_restarted)
        elif TopicName.parse(topic).is_persistent:
            directory, identity, store_id, _, must_exist, _ = handle.arguments
            place = str(self.place_on(handle.node_id, directory))
            owner = store_name(handle.node_id[:8]), store_id
            life = StubPartition(
                handle.name, place, identity, owner, must_exist, self._disk, self, *shared, wait_for,
                is_restarted=is_restarted,
            )  # fmt: skip
        else:
            life = StubNonPersistentPartition(handle.name, self, *shared, wait_for, is_restarted=is_restarted)
        return life

    def fatal(self, actor: StubActor, error: BaseException) -> None:
        """End an actor whose process would have ended itself."""
        self.fatal_errors.append(error)
        threading.Thread(target=actor.kill, daemon=True).start()

    def close(self) -> None:
        """Give the stores' directories up, once nobody that was ended holds anything."""
        for node_id in list(self._cut_off):
            self.lose_node(node_id)
        self.wait_all_ended()
        for handle in list(self.handles.values()):
            if isinstance(handle.life, StubStore):
                handle.life.kill()

    # --- policies ---------------------------------------------------------------------------------

    def effective(self, topic: str, update: PolicyUpdate) -> PolicyUpdate:
        """The policies that an actor heeds when it is given these."""
        return self._overridden.get(TopicName.parse(topic).partitioned_full, update)

    def override(self, topic: str, update: PolicyUpdate) -> None:
        """Let settings hold for a topic in place of its policies, before this returns."""
        name = TopicName.parse(topic).partitioned_full
        with self.lock:
            former = self._overridden.get(name)
            version = max(update.version, -1 if former is None else former.version)
            self._overridden[name] = dataclasses.replace(update, version=version + 1)
            lives = [
                life
                for address, life in self.lives().items()
                if TopicName.parse(topic_of_actor(address)).partitioned_full == name and not life.is_dead
            ]
        for life in lives:
            with suppress(PulsarException):  # those that do not serve
                life.serving(_ANSWER_S)
                life.result(life.start_call("apply_policies", (update,)), _ANSWER_S)
