"""A broker in this process without Ray.

The real controller, servers, lanes and files stand behind the `Cluster` protocol.

Controller, partitions and dispatchers are the broker's own objects, each on an owner loop of its own; only
processes are imitated (`stub_actors`). Hooks kill actors as a SIGKILL would, keep them down, and spoil the
tunnel.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pulsar_ray.actors.actor_system import ActorKind
from pulsar_ray.actors.control_plane import ControlPlane
from pulsar_ray.broker.catalog.catalog import Catalog
from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.clock import Clock, SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerGone,
    Moved,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.managed_ledger.store.store_identity import (
    CATALOG_FILE,
    STORE_FILE,
    StoreIdentity,
    read_identity,
    write_identity,
)
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.session.requests import PROTOCOL_VERSION
from pulsar_ray.setting_fields import SettingValue
from pulsar_ray.testing.faulty_disk import FaultyDisk
from pulsar_ray.testing.lossy_tunnel import PERFECT, TunnelFaults
from pulsar_ray.testing.stub_actor import (
    StubActor,
    StubDispatcher,
    StubNonPersistentPartition,
    StubPartition,
    answer_of,
)
from pulsar_ray.testing.stub_actors import HOST, NODE_ID, StubActors
from pulsar_ray.testing.stub_compactor import StubCompactor
from pulsar_ray.testing.stub_controller import CONTROLLER_S, StubController
from pulsar_ray.testing.stub_store import StubStore
from pulsar_ray.testing.stub_tracker import StubTracker
from pulsar_ray.testing.stub_tunnel import StubTunnel, TunnelCall
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import (
    dispatcher_name,
    parse_dispatcher_name,
    partition_name,
    topic_of_actor,
    tracker_name,
)
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute, SubscriptionRequest
from pulsar_ray.transport.retry import until

T = TypeVar("T")
STORE = "stub"
"""The id of the store."""
OTHER_STORE = "beside"
"""That of a second node's."""
ATTACH_TIMEOUT_S = 5.0
RESTLESS_PAUSE_S = 0.01
LOOK_PAUSE_S = 0.002
_LEAVE = (ActorKind.PARTITION, ActorKind.DISPATCHER)
_FAR_STORE, _FAR_HOST = "far-store", "far"


def anybody() -> None:
    """No process ends among those that only tests run in."""


class StubCluster:
    """Serves `data_dir`; a new one on the same directory finds what an earlier one stored.

    `reads_files=False` makes every client one of another node: it is sent bytes. `lanes=False` leaves only
    the tunnel, for the dispatchers that follow partitions too. `edit_attach` may change what an attach
    answers. `clock` is that of all actors; `disk` takes the place of the partitions' FaultyDisk.
    """

    def __init__(
        self,
        data_dir: Path,
        settings: Settings | None = None,
        *,
        reads_files: bool = True,
        lanes: bool = True,
        faults: TunnelFaults = PERFECT,
        seed: int = 0,
        clock: Clock | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.settings = settings or Settings(data_dir=str(data_dir))
        self.disk = FaultyDisk()
        self.silent: list[str] = []
        self.edit_attach: Callable[[AttachReply], AttachReply] = _unchanged
        self._reads_files = reads_files
        self._lanes = lanes
        self.tunnel = StubTunnel(faults, seed)
        self._lane_directory = Path(tempfile.mkdtemp(prefix="pr-"))
        self._has_ended = False
        self._gone: BrokerGone | None = None
        self._told: list[Callable[[PulsarException], None]] = []
        self._restless: threading.Thread | None = None
        self.actors = StubActors(
            self.settings, self._lane_directory, clock or SystemClock(), disk or self.disk, self._check_runs
        )
        self.actors.cluster = self
        self.fatal_errors = self.actors.fatal_errors
        self.control = StubController(self.actors, _order(data_dir), self.settings)

    # --- the Cluster protocol ---------------------------------------------------------------------

    def resolve(
        self,
        topic: str,
        *,
        create: bool,
        was_open: bool = False,
        timeout_s: float,
        check: Callable[[], None] = anybody,
    ) -> list[PartitionRoute]:
        """As RayCluster.resolve; `check` raises for an asking process that has ended meanwhile."""
        self._check_runs()
        check()
        rows = self.controller("resolve", topic, create, was_open, timeout_s=timeout_s)
        return [PartitionRoute(*row) for row in rows]

    def partitions(self, topic: str, timeout_s: float) -> list[PartitionRoute]:
        """As RayCluster.partitions."""
        rows = self.controller("partitions", topic, timeout_s=timeout_s)
        return [PartitionRoute(*row) for row in rows]

    def topics(self, namespace: str, timeout_s: float) -> list[tuple[str, int]]:
        """As RayCluster.topics."""
        topics: list[tuple[str, int]] = self.controller("list_topics", namespace, timeout_s=timeout_s)
        return topics

    def controller(
        self,
        method: str,
        *arguments: Any,
        timeout_s: float,
        was_done: Callable[[PulsarException], bool] = lambda _: False,
    ) -> Any:
        """As RayCluster.controller; what crosses is a copy."""

        return until(
            timeout_s,
            lambda left_s: self._ask_controller(method, arguments, left_s),
            again=(Moved, NotConnected),
            was_done=was_done,
        )

    def _ask_controller(self, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        self._check_runs()
        return self.control.ask(method, arguments, timeout_s)

    def dispatcher(self, request: SubscriptionRequest, timeout_s: float) -> str:
        """As RayCluster.dispatcher."""
        address: str = self.controller("dispatcher", *request.asked, timeout_s=timeout_s)
        return address

    def attach(
        self,
        address: str,
        client_id: str,
        *,
        want_tcp: bool,
        attempt: int,
        timeout_s: float,
        check: Callable[[], None] = anybody,
    ) -> AttachReply:
        """Attach, restarting the actor first if it was killed; `check` as for `resolve`."""
        with self.actors.lock:
            check()
            actor: StubActor = self.actors.life(address)
        reply = AttachReply(**actor.attach(client_id, PROTOCOL_VERSION, want_tcp, attempt, timeout_s))
        if not self._reads_files:
            reply = dataclasses.replace(reply, reach=("", ""))
        if not self._lanes:
            reply = dataclasses.replace(reply, unix_path=None, tcp_address=None)
        return self.edit_attach(reply)

    def exchange(
        self,
        address: str,
        session_id: int,
        attachment: int,
        token: bytes,
        up: tuple[int, Sequence[tuple[int, Any]]],
    ) -> TunnelCall:
        """Start one tunnel call, with the fate that is drawn for it."""
        actor: StubActor | None = self.actors.last(address)
        if actor is None:
            raise Moved(f"{address}: no such actor")
        return self.tunnel.start(actor, session_id, attachment, token, up)

    def exchange_result(self, handle: TunnelCall, timeout_s: float) -> tuple[int, list[tuple[int, bytes]]]:
        """Wait for the packets that a call brought down.

        Raises NotConnected for a lost call or reply.
        """
        return handle.result(timeout_s)

    def await_wake(
        self, client_id: str, parked: Mapping[str, Sequence[tuple[int, bool]]], timeout_s: float
    ) -> list[str]:
        """As RayCluster.await_wake; no process of a client dies."""
        arguments = (client_id, parked, timeout_s)
        awake: list[str] = self._ask_controller("await_wake", arguments, timeout_s + CONTROLLER_S)
        return awake

    def call(self, address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Call a Ray method of an actor, on copies, as between processes."""
        arguments = pickle.loads(pickle.dumps(arguments))
        life = self.actors.life(address)
        if isinstance(life, StubStore):
            return answer_of(address, life.start_call(method, arguments), timeout_s)
        if isinstance(life, StubTracker):
            return pickle.loads(pickle.dumps(life.call(method, arguments, timeout_s)))
        if isinstance(life, StubCompactor):
            return pickle.loads(pickle.dumps(life.call(method, arguments)))
        life.serving(timeout_s)
        return pickle.loads(pickle.dumps(life.result(life.start_call(method, arguments), timeout_s)))

    def call_again(self, address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """As RayCluster.call_again."""
        return until(
            timeout_s,
            lambda left: self.call(address, method, *arguments, timeout_s=left),
            again=(Moved, NotConnected, ServiceUnitNotReady),
        )

    def stats(self, address: str, timeout_s: float = ATTACH_TIMEOUT_S) -> dict[str, Any]:
        """As RayCluster.stats; nobody is started for it."""
        actor = self.actors.present(address)
        if actor is None:
            raise Moved(f"{address}: no such actor")
        try:
            actor.serving(timeout_s)
        except SubscriptionNotFound as error:
            return {"refused": str(error)}
        result: dict[str, Any] = self.call(address, "stats", timeout_s=timeout_s)
        return result

    def tie_life(self, address: str, session_id: int, attachment: int, token: bytes) -> None:
        """All ends are in one process here, which dies as a whole."""

    def dispatcher_gone(self, address: str, *, was_deleted: bool = False) -> None:
        """As RayCluster.dispatcher_gone."""
        self.controller("dispatcher_gone", address, was_deleted, timeout_s=CONTROLLER_S)

    def forget(self, address: str) -> None:
        """Do nothing: names are looked up anew each time."""

    def is_starting(self, address: str) -> bool:
        """Nothing is known of an actor that does not answer."""
        del address
        return False

    def report_silent(self, address: str) -> None:
        """Kill an actor that does not answer, as the controller's probe does in the end.

        It starts again.
        """
        self.silent.append(address)
        life = self.actors.present(address)
        if life is not None:
            life.kill()

    def end_calls(self, wait_s: float) -> None:
        """Do nothing: there is no Ray, and other clients use this object."""

    @property
    def is_reachable(self) -> bool:
        """See Cluster.is_reachable."""
        return self._gone is None

    def when_gone(self, tell: Callable[[PulsarException], None]) -> None:
        """See Cluster.when_gone; `go` tells."""
        self._told.append(tell)

    def go(self) -> None:
        """Go as an embedded broker does whose process is killed.

        Nothing serves any more, and clients are notified.
        """
        error = self._gone = BrokerGone("the embedded broker has ended")
        self.close(kill=True)
        for tell in self._told:
            tell(error)

    def _check_runs(self) -> None:
        if self._has_ended:
            raise self._gone or NotConnected("the broker has ended")

    # --- what runs --------------------------------------------------------------------------------

    @property
    def addresses(self) -> list[str]:
        """The names of partitions and dispatchers that run or ran."""
        return list(self.actors.lives())

    def partition(self, topic: str) -> StubPartition:
        """The running actor of a partition, started if it does not run."""
        actor = self._partition(topic)
        assert isinstance(actor, StubPartition)
        return actor

    def non_persistent_partition(self, topic: str) -> StubNonPersistentPartition:
        """The running actor of a partition that stores nothing."""
        actor = self._partition(topic)
        assert isinstance(actor, StubNonPersistentPartition)
        return actor

    def _partition(self, topic: str) -> StubActor:
        name = partition_name(TopicName.parse(topic).full)
        if name not in self.actors.handles:
            self.resolve(topic, create=False, timeout_s=ATTACH_TIMEOUT_S)
        actor: StubActor = self.actors.life(name)
        actor.serving(ATTACH_TIMEOUT_S)
        return actor

    def dispatcher_of(self, topic: str, subscription: str, *, durable: bool = True) -> StubDispatcher:
        """The running actor of a subscription on a partition."""
        actor = self.actors.life(dispatcher_name(TopicName.parse(topic).full, subscription, durable))
        assert isinstance(actor, StubDispatcher)
        actor.serving(ATTACH_TIMEOUT_S)
        return actor

    def tracker_of(self, topic: str, subscription: str) -> StubTracker | None:
        """The present or last life of the tracker of a subscription's delayed messages."""
        tracker: StubTracker | None = self.actors.last(tracker_name(topic, subscription))
        return tracker

    @property
    def tracker_names(self) -> list[str]:
        """The names of trackers that run or ran."""
        return list(self.actors.trackers())

    def number_of(self, partition: str) -> int | None:
        """The number of a partition in the catalog."""
        row = self.control.look(lambda plane: plane.topics.partition(TopicName.parse(partition)))
        return None if row is None else row.number

    def waiting_clients(self, partition: str) -> int:
        """Count the clients that wait for a partition that sleeps."""
        return self.control.look(lambda plane: plane.passivation.parked_clients.count(partition))

    # --- hooks ------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int) -> None:
        """As Controller.create_topic."""
        self.controller("create_topic", topic, partitions, timeout_s=CONTROLLER_S)

    def delete_topic(self, topic: str) -> None:
        """As Controller.delete_topic, forced."""
        self.controller("delete_topic", topic, True, timeout_s=CONTROLLER_S)

    def remove_unused(self, partition: str) -> bool:
        """As Passivation.remove_unused, for the topic of a partition."""
        row = self.control.look(lambda plane: plane.topics.partition(TopicName.parse(partition)))
        return row is not None and self.control.do(lambda plane: plane.passivation.remove_unused(row.topic))

    def override(self, topic: str, **settings: SettingValue) -> None:
        """Override settings for a topic, in place of former overrides.

        They are in force when this returns.
        """
        version = 0
        with suppress(TopicNotFound):
            row = TopicName.parse(topic)
            name = row.full if self.number_of(row.full) is not None else row.partition(0).full
            version = self.controller("policies_for", name, timeout_s=CONTROLLER_S).version
        self.actors.override(topic, PolicyUpdate(version, dict(settings)))

    def kill(self, address: str, *, keep_down: bool = False) -> None:
        """End an actor without any shutdown.

        It starts again from disk when asked for, unless kept down.
        """
        with self.actors.lock:
            if keep_down:
                self.actors.kept_down.add(address)
            life = self.actors.present(address)
        if life is not None:
            life.kill()

    def kill_controller(self, *, begins: bool = True) -> None:
        """End the controller in the middle of what it does; it starts again at once.

        Unless it `begins`, it knows nothing until somebody asks for something.
        """
        self.control.kill(begins=begins)

    def allow(self, address: str) -> None:
        """An actor that was kept down may start again."""
        self.actors.kept_down.discard(address)

    def put_to_sleep(self, topic: str, *, with_clients: bool = False) -> bool:
        """Let the actors of a partition leave that may; True if the partition's own did.

        They start again when they are asked for.
        """
        partition = TopicName.parse(topic).full
        if partition_name(partition) in self.actors.handles:
            with suppress(NotConnected, Moved):  # one of them was killed
                self.control.do(lambda plane: self._leave(plane, partition, with_clients=with_clients))
            return partition_name(partition) not in self.actors.handles
        return False

    async def _leave(self, plane: ControlPlane, partition: str, *, with_clients: bool) -> None:
        handles = [
            handle for name, handle in self.actors.handles.items() if topic_of_actor(name) == partition
        ]
        for _ in range(2):
            # Actors know from one look to the next that nobody has used them; long ago, where they report.
            await asyncio.sleep(LOOK_PAUSE_S)
            looks = [await handle.call("idle") for handle in handles if handle.kind in _LEAVE]
        if all(idle is not None and idle.idle_ms for idle in looks):
            await plane.passivation.leave_now(partition, with_clients=with_clients)

    def keep_putting_to_sleep(self) -> None:
        """Let every actor leave from now on as soon as nothing is under way."""

        def run() -> None:
            while not self._has_ended:
                for address in self.addresses:
                    if parse_dispatcher_name(address) is None:
                        with suppress(PulsarException):
                            self.put_to_sleep(topic_of_actor(address), with_clients=True)
                time.sleep(RESTLESS_PAUSE_S)

        self._restless = threading.Thread(target=run, name="restless", daemon=True)
        self._restless.start()

    def add_node(self, host: str = OTHER_STORE) -> str:
        """Have a node join, with a store that has the host's name, which is returned.

        One that comes back has the store that lies there.
        """
        self.actors.add_node(host)
        place = self.actors.directory_of(host)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / STORE_FILE).exists():
            write_identity(place, StoreIdentity(host))
        self.control.do(lambda plane: plane.stores.find())
        return host

    @property
    def catalog_host(self) -> str:
        """The host of the controller, or of the last one."""
        return self.actors.host_of(self.control.node_id)

    def lose_node(self, host: str) -> Path:
        """Lose a node with all that runs there, for good; return its disk.

        If it is that of the catalog, another controller has to begin elsewhere.
        """
        node_id = self.actors.node_on(host)
        if node_id == self.control.node_id:
            self.control.lose()
        disk = self.actors.directory_of(host)
        self.actors.lose_node(node_id)
        return disk

    def cut_off_node(self, host: str) -> None:
        """Cut a node off; its processes live until it is lost."""
        self.actors.cut_off(self.actors.node_on(host))

    def begin_controller(self, host: str) -> None:
        """Have a node begin a controller, as its store would after a while (ADR 0143)."""
        self.control.begin_on(self.actors.node_on(host), self.actors.directory_of(host))

    def wait_shipping(self, host: str = HOST) -> None:
        """Wait until what is stored on a node is shipped."""

        def ships() -> bool:
            store = self.actors.store_on(host)
            return store is not None and store.is_shipping

        wait_until(ships, timeout_s=CONTROLLER_S, what=f"the store on {host} ships")

    def drain_by_ray(self) -> None:
        """Have Ray drain the second node."""
        self.actors.drained.add(self.actors.node_on(OTHER_STORE))
        self.control.do(lambda plane: plane.moves.look())

    def store_of(self, partition: str) -> str:
        """Return the store that a partition is in."""
        row = self.control.look(lambda plane: plane.topics.partition(TopicName.parse(partition)))
        return "" if row is None else row.store_id

    def take_away(self, partition: str) -> None:
        """The node of a partition is gone, with the partition's actor and its dispatchers."""
        self._move(partition, _FAR_STORE)
        self.actors.end_named(partition)
        self.control.look(lambda plane: plane.topic_actors.replace_dead())

    def bring_back(self, partition: str) -> None:
        """The node of a partition is there again."""
        self._move(partition, STORE)

    def _move(self, partition: str, store_id: str) -> None:
        def move(plane: ControlPlane) -> None:
            catalog = plane.topics.catalog
            catalog.remember_store(_FAR_STORE, _FAR_HOST, "/far")
            catalog._db.execute("UPDATE partition SET store_id = ? WHERE name = ?", (store_id, partition))  # noqa: SLF001

        self.control.look(move)

    def lose_unstored(self, topic: str) -> None:
        """A non-persistent topic is gone with its node and that of the catalog."""
        self.control.look(lambda plane: plane.topics.unstored.discard(topic))
        self.actors.end_named(topic)
        self.control.look(lambda plane: plane.topic_actors.replace_dead())

    def cut_lanes(self, address: str) -> None:
        """Break every connection of an actor; the actor lives."""
        actor: StubActor = self.actors.last(address)

        async def cut() -> None:
            for lane in actor.host.lanes.lanes:
                lane._abort()  # noqa: SLF001 - as a network would: no farewell

        with suppress(PulsarException):
            actor.result(actor.submit(cut), ATTACH_TIMEOUT_S)

    def close(self, *, kill: bool = False) -> None:
        """End all actors, in order or by killing them; the directory can be served again."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._restless is not None:
            self._restless.join()
        self.control.close()
        lives = self.actors.lives().values()
        for kind in (StubDispatcher, StubNonPersistentPartition, StubPartition):
            for actor in lives:
                if isinstance(actor, kind):
                    actor.kill() if kill else actor.stop()
        for tracker in self.actors.trackers().values():
            tracker.kill()
        for compactor in self.actors.compactors().values():
            compactor.kill()
        self.actors.close()
        shutil.rmtree(self._lane_directory, ignore_errors=True)


def _order(data_dir: Path) -> CatalogOrder:
    """The order for the catalog of a directory, whose store gets a known id."""
    data_dir.mkdir(parents=True, exist_ok=True)
    cluster_id = str(uuid.uuid4())
    path = data_dir / CATALOG_FILE
    if not (data_dir / STORE_FILE).exists():
        write_identity(data_dir, StoreIdentity(STORE))
    if not path.exists():
        store = read_identity(data_dir)
        if store is not None and store.cluster_id:  # it was brought back from an object store
            return CatalogOrder(NODE_ID, "rebuild", store.cluster_id, str(uuid.uuid4()))
        return CatalogOrder(NODE_ID, "found", cluster_id, "stub")
    catalog = Catalog(path)
    cluster_id = catalog.identity.cluster_id or cluster_id
    catalog.close()
    return CatalogOrder(NODE_ID, "open", cluster_id, "stub")


def _unchanged(reply: AttachReply) -> AttachReply:
    return reply
