"""A broker in this process without Ray.

The real servers, lanes and files stand behind the `Cluster` protocol.

Partitions and dispatchers are the broker's own objects, each on an owner loop of its own; only naming,
placement and restarting are imitated. Hooks kill actors as a SIGKILL would, keep them down, and spoil the
tunnel.
"""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.broker.partition.sleeping_partition import describe_sleeping, describe_unstored
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
    WrongNode,
)
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.managed_ledger.store.store_identity import CATALOG_FILE
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.session.requests import PROTOCOL_VERSION
from pulsar_ray.setting_fields import SettingValue
from pulsar_ray.testing.faulty_disk import FaultyDisk
from pulsar_ray.testing.lossy_tunnel import PERFECT, TunnelFaults
from pulsar_ray.testing.stub_actor import StubActor, StubDispatcher, StubNonPersistentPartition, StubPartition
from pulsar_ray.testing.stub_administration import STORE, StubAdministration, finished
from pulsar_ray.testing.stub_controller import StubController
from pulsar_ray.testing.stub_lives import StubLives, anybody, is_persistent
from pulsar_ray.testing.stub_passivation import StubPassivation
from pulsar_ray.testing.stub_policies import StubPolicies
from pulsar_ray.testing.stub_tracker import StubTrackers
from pulsar_ray.testing.stub_tunnel import StubTunnel, TunnelCall
from pulsar_ray.transport.actor_names import (
    dispatcher_name,
    parse_dispatcher_name,
    parse_tracker_name,
    partition_name,
    topic_of_actor,
)
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute, SubscriptionRequest
from pulsar_ray.transport.retry import until

ATTACH_TIMEOUT_S = 5.0


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
        self._clock = clock or SystemClock()
        self.silent: list[str] = []
        self.controller_answers_to_lose = 0
        self.withholds_policies = False
        """Whether dispatchers that were restarted learn no policies."""
        self.edit_attach: Callable[[AttachReply], AttachReply] = _unchanged
        self._data_dir = data_dir
        self._reads_files = reads_files
        self._lanes = lanes
        self.tunnel = StubTunnel(faults, seed)
        self._lane_directory = Path(tempfile.mkdtemp(prefix="pr-"))
        data_dir.mkdir(parents=True, exist_ok=True)
        self._topics = TopicRegistry(_catalog(data_dir / CATALOG_FILE), self.settings)
        self._lock = threading.RLock()
        self._actors: dict[str, StubActor] = {}
        self._policies = StubPolicies(self._topics, self._actors, self._lock)
        self.passivation = StubPassivation(
            self._actors,
            self._lock,
            self._topics,
            self._clock,
            self._start_to_elect,
        )
        self._lives = StubLives(
            self,
            self._actors,
            self._lock,
            self._topics,
            self.settings,
            self._policies,
            data_dir,
            self._lane_directory,
            self._clock,
            disk or self.disk,
            on_started=self.passivation.started,
            take_left=self.passivation.consumers.take_left,
            on_unused=self.passivation.remove_unused,
            withholds_policies=lambda: self.withholds_policies,
        )
        self.fatal_errors = self._lives.fatal_errors
        self.administration = StubAdministration(
            self._topics,
            self.settings,
            self._call_log,
            self._end,
            self._policies.hand_over,
            self._connected,
            self.passivation.consumers.at,
            self._check_there,
        )
        self.trackers = StubTrackers(self._clock)
        self._controller = StubController(
            self._topics,
            self._started,
            self._routes,
            self._described_asleep,
            self.administration,
            self.passivation,
            self._restart,
            self.trackers,
            lambda name: name in self._actors and self._actors[name].stands_still,
        )
        self.passivation.remove_by(self._lives.partition, self._controller.delete_topic)
        self._told: list[Callable[[PulsarException], None]] = []
        finished(self.administration.logs.catch_up())

    # --- the Cluster protocol ------------------------------------------------------------------------------

    def resolve(
        self,
        topic: str,
        *,
        create: bool,
        was_open: bool = False,
        timeout_s: float,
        check: Callable[[], None] = anybody,
    ) -> list[PartitionRoute]:
        """As Controller.resolve; `check` raises for an asking process that has ended meanwhile."""
        with self._lock:
            self._lives.check_runs()
            check()
            if was_open:
                self._topics.begin_again(TopicName.parse(topic))
            rows = self._topics.resolve(TopicName.parse(topic), create=create, stores=lambda: [STORE])
            self.passivation.asked([row.name for row in rows])
            return self._started(rows)

    def _started(self, rows: list[PartitionRow]) -> list[PartitionRoute]:
        for row in rows:
            with suppress(NotConnected):
                if row.name not in self._lives.away:
                    self._lives.partition(row)
        return self._routes(rows)

    def _routes(self, rows: list[PartitionRow]) -> list[PartitionRoute]:
        return [
            PartitionRoute(
                row.name, row.partition_index, partition_name(row.name), self._lives.away.get(row.name, "")
            )
            for row in rows
        ]

    def partitions(self, topic: str, timeout_s: float) -> list[PartitionRoute]:
        """As Controller.partitions."""
        rows = self.controller("partitions", topic, timeout_s=timeout_s)
        return [PartitionRoute(*row) for row in rows]

    def topics(self, namespace: str, timeout_s: float) -> list[tuple[str, int]]:
        """As Controller.list_topics."""
        self._lives.check_runs()
        return self._topics.topics(namespace)

    def controller(
        self,
        method: str,
        *arguments: Any,
        timeout_s: float,
        was_done: Callable[[PulsarException], bool] = lambda _: False,
    ) -> Any:
        """A call to the controller by an administrator; what crosses is a copy."""

        def call(_left_s: float) -> Any:
            with self._lock:
                self._lives.check_runs()
                answer = getattr(self._controller, method)(*pickle.loads(pickle.dumps(arguments)))
            if self.controller_answers_to_lose:
                self.controller_answers_to_lose -= 1
                raise NotConnected("the controller died before it answered")
            return pickle.loads(pickle.dumps(answer))

        return until(timeout_s, call, again=(NotConnected,), was_done=was_done)

    def dispatcher(self, request: SubscriptionRequest, timeout_s: float) -> str:
        """As Controller.dispatcher."""
        topic = TopicName.parse(request.topic)
        address = dispatcher_name(request.topic, request.subscription, request.durable)
        with self._lock:
            self._lives.check_runs()
            if request.was_open:
                self._topics.begin_again(topic)
            row = self._topics.partition(topic)
            if row is None:
                raise TopicNotFound(f"the topic {request.topic} does not exist")
            if request.topic in self._lives.away:
                raise WrongNode(self._lives.away[request.topic])
            running = self._actors.get(address)
            if isinstance(running, StubDispatcher) and not running.is_dead and not running.is_missing:
                return address
            allowed = self._topics.may_create_subscription(
                row, address, asked=request.create, was_open=request.was_open
            )
            request = dataclasses.replace(request, create=allowed or not request.durable)
            with suppress(NotConnected):
                self._lives.dispatcher(address, request)
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
        actor = self._lives.running(address, check)
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
        actor = self._actors.get(address)
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
        awake: list[str] = self.controller("await_wake", client_id, parked, timeout_s, timeout_s=timeout_s)
        return awake

    def call(self, address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """Call a Ray method of an actor for an administrator, on copies, as between processes."""
        arguments = pickle.loads(pickle.dumps(arguments))
        if parse_tracker_name(address) is not None:
            self._lives.check_runs()
            return pickle.loads(pickle.dumps(self.trackers.call(address, method, arguments, timeout_s)))
        actor = self._lives.running(address)
        actor.serving(timeout_s)
        result = actor.result(actor.submit(lambda: actor.carry_out(method, *arguments)), timeout_s)
        return pickle.loads(pickle.dumps(result))

    def call_again(self, address: str, method: str, *arguments: Any, timeout_s: float) -> Any:
        """As RayCluster.call_again."""
        return until(
            timeout_s,
            lambda left: self.call(address, method, *arguments, timeout_s=left),
            again=(Moved, NotConnected, ServiceUnitNotReady),
        )

    def stats(self, address: str, timeout_s: float = ATTACH_TIMEOUT_S) -> dict[str, Any]:
        """As RayCluster.stats; nobody is started for it."""
        actor = self._actors.get(address)
        if actor is None or actor.is_dead:
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
        """End a dispatcher as Controller.dispatcher_gone does.

        A later subscribe starts a new one.

        One that serves stays.
        """
        actor = self._actors.get(address)
        if isinstance(actor, StubDispatcher) and actor.serves(ATTACH_TIMEOUT_S):
            return
        with self._lock:
            if self._actors.get(address) is not actor:
                return
            self._actors.pop(address, None)
            if was_deleted:
                self._topics.subscription_ended(TopicName.parse(topic_of_actor(address)), address)
        if actor is not None:
            actor.kill()
        self.passivation.subscription_gone(topic_of_actor(address))

    def forget(self, address: str) -> None:
        """Do nothing: names are looked up anew each time."""

    def is_starting(self, address: str) -> bool:
        """Nothing is known of an actor that does not answer."""
        del address
        return False

    def report_silent(self, address: str) -> None:
        """Kill an actor that does not answer, as the controller's probe does.

        It starts again.
        """
        self.silent.append(address)
        self.trackers.report_silent(address)
        actor = self._actors.get(address)
        if actor is not None:
            actor.kill()

    def end_calls(self, wait_s: float) -> None:
        """Do nothing: there is no Ray, and other clients use this object."""

    @property
    def is_reachable(self) -> bool:
        """See Cluster.is_reachable."""
        return self._lives.gone is None

    def when_gone(self, tell: Callable[[PulsarException], None]) -> None:
        """See Cluster.when_gone; `go` tells."""
        self._told.append(tell)

    def go(self) -> None:
        """Go as an embedded broker does whose process is killed.

        Nothing serves any more, and clients are notified.
        """
        error = self._lives.gone = BrokerGone("the embedded broker has ended")
        self.close(kill=True)
        for tell in self._told:
            tell(error)

    def _described_asleep(self, row: PartitionRow) -> dict[str, Any] | None:
        """As Passivation.describe_sleeping."""
        actor = self._actors.get(partition_name(row.name))
        if (actor is not None and not actor.is_dead) or row.name in self._lives.away:
            return None
        if not row.has_ledger:
            return describe_unstored()
        return describe_sleeping(self._data_dir / "p" / str(row.number))

    # --- what the controller does with actors ---------------------------------------------------------------

    def _call_log(self, partition: str, method: str, arguments: dict[str, Any]) -> Any:
        """A control call of a change log's partition, by the controller."""
        self._check_there(partition)
        address = partition_name(partition)
        return self.call_again(address, "call", method, arguments, timeout_s=ATTACH_TIMEOUT_S)

    def _start_to_elect(self, address: str) -> None:
        self._lives.start_to_elect(address)

    def _check_there(self, partition: str) -> None:
        if partition in self._lives.away:
            raise WrongNode(self._lives.away[partition])

    def _connected(self, partition: str) -> list[str]:
        """As TopicActors.connected."""
        actors = [actor for address, actor in self._actors.items() if topic_of_actor(address) == partition]
        return [name for actor in actors for name in actor.connected(ATTACH_TIMEOUT_S)]

    # --- hooks ---------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int) -> None:
        """As Controller.create_topic."""
        with self._lock:
            self._controller.create_topic(topic, partitions)

    def override(self, topic: str, **settings: SettingValue) -> None:
        """Override settings for a topic, in place of former overrides.

        They are in force when this returns.
        """
        self._policies.override(topic, settings)

    def delete_topic(self, topic: str) -> None:
        """As Controller.delete_topic, forced."""
        with self._lock:
            self._controller.delete_topic(topic, True)

    def _end(self, rows: list[PartitionRow]) -> None:
        """End the actors of deleted partitions, and delete their directories."""
        names = {row.name for row in rows}
        gone = [address for address in self._actors if topic_of_actor(address) in names]
        actors = [self._actors.pop(address) for address in gone]
        for address in gone:
            if parse_dispatcher_name(address) is not None:
                self._topics.subscription_ended(TopicName.parse(topic_of_actor(address)), address)
        self.passivation.deleted()
        self.trackers.end_of(names)
        for actor in actors:
            actor.kill()
            actor.wait_ended()
        for row in filter(lambda row: is_persistent(row.name), rows):
            shutil.rmtree(self._data_dir / "p" / str(row.number), ignore_errors=True)

    def remove_unused(self, partition: str) -> bool:
        """See StubPassivation.remove_unused."""
        return self.passivation.remove_unused(partition)

    def partition(self, topic: str) -> StubPartition:
        """The running actor of a partition, started if it does not run."""
        actor = self._lives.running(partition_name(TopicName.parse(topic).full))
        assert isinstance(actor, StubPartition)
        actor.serving(ATTACH_TIMEOUT_S)
        return actor

    def non_persistent_partition(self, topic: str) -> StubNonPersistentPartition:
        """The running actor of a partition that stores nothing."""
        actor = self._lives.running(partition_name(TopicName.parse(topic).full))
        assert isinstance(actor, StubNonPersistentPartition)
        actor.serving(ATTACH_TIMEOUT_S)
        return actor

    def dispatcher_of(self, topic: str, subscription: str, *, durable: bool = True) -> StubDispatcher:
        """The running actor of a subscription on a partition."""
        actor = self._lives.running(dispatcher_name(TopicName.parse(topic).full, subscription, durable))
        assert isinstance(actor, StubDispatcher)
        actor.serving(ATTACH_TIMEOUT_S)
        return actor

    @property
    def addresses(self) -> list[str]:
        """Everything that runs or ran."""
        return list(self._actors)

    def kill(self, address: str, *, keep_down: bool = False) -> None:
        """End an actor without any shutdown.

        It starts again from disk when asked for, unless kept down.
        """
        with self._lock:
            if keep_down:
                self._lives.kept_down.add(address)
            actor = self._actors.get(address)
        if actor is not None:
            actor.kill()

    def _restart(self, rows: list[PartitionRow]) -> None:
        """End the actors of partitions as a crash would. Called with the lock held."""
        names = {row.name for row in rows}
        for actor in [each for address, each in self._actors.items() if topic_of_actor(address) in names]:
            actor.kill()

    def put_to_sleep(self, topic: str, *, with_clients: bool = False) -> bool:
        """See StubPassivation.put_to_sleep."""
        return self.passivation.put_to_sleep(topic, with_clients=with_clients)

    def allow(self, address: str) -> None:
        """An actor that was kept down may start again."""
        self._lives.kept_down.discard(address)

    def take_away(self, partition: str) -> None:
        """The node of a partition is gone, with the partition's actor and its dispatchers."""
        with self._lock:
            self.trackers.end_of({partition})
            self._lives.away[partition] = (
                f"{partition} lives in store s1 of host far, which no running node holds"
            )
            gone = [address for address in self._actors if topic_of_actor(address) == partition]
            actors = [self._actors.pop(address) for address in gone]
        for actor in actors:
            actor.kill()
            actor.wait_ended()

    def lose_unstored(self, topic: str) -> None:
        """A non-persistent topic is gone with its node and that of the catalog."""
        with self._lock:
            self._topics.unstored.discard(topic)
            gone = [address for address in self._actors if topic_of_actor(address) == topic]
            actors = [self._actors.pop(address) for address in gone]
        for actor in actors:
            actor.kill()
            actor.wait_ended()

    def bring_back(self, partition: str) -> None:
        """The node of a partition is there again."""
        with self._lock:
            del self._lives.away[partition]

    def cut_lanes(self, address: str) -> None:
        """Break every connection of an actor; the actor lives."""
        actor = self._actors[address]

        async def cut() -> None:
            for lane in actor.host.lanes.lanes:
                lane._abort()  # noqa: SLF001 - as a network would: no farewell

        with suppress(PulsarException):
            actor.result(actor.submit(cut), ATTACH_TIMEOUT_S)

    def close(self, *, kill: bool = False) -> None:
        """End all actors, in order or by killing them; the directory can be served again."""
        with self._lock:
            self._lives.has_ended = True
        self.passivation.end()
        for kind in (StubDispatcher, StubNonPersistentPartition, StubPartition):
            for actor in list(self._actors.values()):
                if isinstance(actor, kind):
                    actor.kill() if kill else actor.stop()
        for name in self.trackers.names:
            self.trackers.end(name)
        self._topics.catalog.close()
        shutil.rmtree(self._lane_directory, ignore_errors=True)


def _unchanged(reply: AttachReply) -> AttachReply:
    return reply


def _catalog(path: Path) -> Catalog:
    return Catalog(path) if path.exists() else Catalog.make(path, "", "stub")[0]
