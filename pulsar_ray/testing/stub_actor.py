"""One life of a broker actor in this process.

The real server and session host run on an owner loop.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, cast

from pulsar_ray.broker.partition.non_persistent.non_persistent_partition import NonPersistentPartitionServer
from pulsar_ray.broker.partition.partition_server import PartitionServer
from pulsar_ray.broker.partition.partition_start import open_ledger, start_partition, taken_back
from pulsar_ray.broker.serving.actor_body import ActorBody, ActorServer, learn_policies
from pulsar_ray.broker.serving.owner_loop import DiskThread, OwnerLoop
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.shipping_link import ShippingLink, shipping_link
from pulsar_ray.broker.serving.sleeper import Idle, Retired
from pulsar_ray.broker.subscription.cursor_flusher import CursorFlusher
from pulsar_ray.broker.subscription.dispatcher_server import DispatcherServer
from pulsar_ray.broker.subscription.dispatcher_start import new_dispatcher, start_dispatcher
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.broker.subscription.stored_subscriptions import StoredSubscriptions
from pulsar_ray.clock import Clock, RunningClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerPersistenceError,
    Moved,
    NotConnected,
    PulsarException,
    Timeout,
)
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.ledger.owner_lock import FileLock, HeldLock, take_lock
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.managed_ledger.store.store_directory import check_is_store, hold_cluster_lock
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.testing.stub_process import AskedCluster, StubProcess
from pulsar_ray.transport.actor_names import partition_name, topic_of_actor
from pulsar_ray.transport.cluster import Cluster, SubscriptionRequest

NODE_ADDRESS = "127.0.0.1"
_LIVES = itertools.count(1)
_START_TIMEOUT_S = 30.0
_KILL_PATIENCE_S = 2.0
_STOP_PATIENCE_S = 10.0
_FREEZE_S = 5.0
_REPORT_S = 5.0


class ActorsOfStub(Protocol):
    """Their system, as actors know it."""

    cluster: AskedCluster
    withholds_policies: bool

    def effective(self, topic: str, update: PolicyUpdate) -> PolicyUpdate: ...

    def fatal(self, actor: StubActor, error: BaseException) -> None: ...


def answer_of(address: str, future: Future[Any], timeout_s: float) -> Any:
    """Wait for the answer of an actor's process.

    Raises its error, Timeout, or NotConnected if the process died meanwhile.
    """
    try:
        return future.result(timeout_s)
    except CancelledError:
        raise NotConnected(f"{address}: the actor died") from None
    except (FutureTimeout, TimeoutError):
        raise Timeout(f"{address}: no answer in time") from None
    except OSError as error:  # as Ray's errors are translated
        raise BrokerPersistenceError(f"{address}: {error}: see to the disk") from None


class StubActor:
    """Base of all kinds of stub actors.

    `kill` is a SIGKILL: nothing is flushed, answered or closed in order.
    """

    server: PartitionServer | NonPersistentPartitionServer | DispatcherServer | None

    def __init__(
        self,
        address: str,
        system: ActorsOfStub,
        settings: Settings,
        policies: PolicyUpdate,
        lane_directory: Path,
        clock: Clock,
        former: Sequence[StubActor],
        *,
        is_restarted: bool,
    ) -> None:
        """`former` lives of this actor have to let go of its files first."""
        self.address = address
        self.topic = topic_of_actor(address)
        self._system = system
        self._former = former
        self._is_restarted = is_restarted
        self.in_force = PoliciesInForce(settings, policies, is_stale=is_restarted)
        self.clock = RunningClock(clock)
        self.owner = OwnerLoop(f"owner {address}", on_fatal=self._fatal)
        self.is_dead = False
        self.is_cut_off = False
        """Whether nobody else hears its process any more, which lives."""
        self._cluster_lock: FileLock | None = None
        self._number = next(_LIVES)
        self._calls: set[Future[Any]] = set()
        self._lock = threading.Lock()
        self._has_retired = False
        self._thawed = threading.Event()
        self._thawed.set()
        self._ended = threading.Event()
        # As in a broker actor: sessions of a former life must not be mistaken for new ones.
        first_id = int.from_bytes(os.urandom(5), "little") << 20 | 1
        self.host = SessionHost(self.owner.loop, lane_directory, NODE_ADDRESS, settings, self.clock, first_id)
        self.cluster = cast("Cluster", StubProcess(system.cluster, lambda: self.is_dead or self.is_cut_off))
        self.body = ActorBody(
            address,
            self.owner,
            self.host,
            self.in_force,
            self.clock,
            start=self._begin,
            report_idle=self._report_idle,
            end_process=lambda _: threading.Thread(target=self.kill, name="end", daemon=True).start(),
        )
        self.body.begin()
        if is_restarted and not system.withholds_policies:
            self._in_a_thread(self._learn_policies)

    async def _begin(self) -> ActorServer:
        if self.is_dead:
            # A call that came before its death would start it once more, and hold its locks for ever.
            raise NotConnected(f"{self.address}: the actor died")
        for life in self._former:
            await asyncio.to_thread(life.wait_ended)
        if self._cluster_lock is None:
            self._cluster_lock = hold_cluster_lock(Path(self.in_force.settings.data_dir))
        return await self._start()

    async def _start(self) -> ActorServer:
        raise NotImplementedError

    def _in_a_thread(self, work: Callable[[], object]) -> None:
        """Tell or ask the controller something; what is lost is told again."""

        def run() -> None:
            with suppress(PulsarException, CancelledError):
                work()

        threading.Thread(target=run, name=f"of {self.address}", daemon=True).start()

    def _learn_policies(self) -> None:
        """Ask the controller, as a restarted actor does."""
        learn_policies(
            lambda: self.cluster.controller("policies_for", self.topic, timeout_s=_START_TIMEOUT_S),
            lambda update: self.result(self.start_call("apply_policies", (update,)), _START_TIMEOUT_S),
            self._ended.wait,
        )

    def _report_idle(self, idle: Idle) -> None:
        self._in_a_thread(
            lambda: self.cluster.controller("report_idle", self.address, idle, timeout_s=_REPORT_S)
        )

    def _fatal(self, error: BaseException) -> None:
        if not self.is_dead:
            self._system.fatal(self, error)

    def _disks(self) -> list[DiskThread]:
        raise NotImplementedError

    def _let_go(self) -> None:
        """Drop locks and files, which the kernel would do for a dead process."""
        raise NotImplementedError

    # --- calls ---------------------------------------------------------------------------------------------

    def submit(self, work: Callable[[], Awaitable[Any]]) -> Future[Any]:
        """Start a call on the owner loop. Raises NotConnected once dead."""
        with self._lock:
            if self.is_dead:
                raise NotConnected(f"{self.address}: the actor is restarting")
            future: Future[Any] = self.owner.submit(work)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def result(self, future: Future[Any], timeout_s: float) -> Any:
        """Wait for a call's answer.

        Raises its error, Timeout, or NotConnected if the actor died meanwhile.
        """
        return answer_of(self.address, future, timeout_s)

    def serving(self, timeout_s: float) -> SessionHost:
        """The host, once started, frozen or not. Raises what starting was refused with."""
        if not self.body.has_started:
            self.result(self.submit(self.body.serving), timeout_s)
        return self.host

    def attach(
        self, client_id: str, protocol_version: int, want_tcp: bool, attempt: int, timeout_s: float
    ) -> dict[str, Any]:
        """See LaneActor.attach."""
        call = self.submit(lambda: self.body.attach(client_id, protocol_version, want_tcp, attempt))
        reply: dict[str, Any] = self.result(call, timeout_s)
        return reply

    # --- the Ray methods of the actor ------------------------------------------------------------

    def start_call(self, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Start a Ray method of the actor, which raises Moved once asleep.

        Raises NotConnected once dead.
        """

        async def run() -> Any:
            if self.body.sleeper is not None and self.body.sleeper.has_left:
                raise Moved(f"{self.address} has gone to sleep: resolve its topic again")
            return await getattr(self, method)(*arguments)

        return self.submit(run)

    async def _served(self) -> Any:
        """The server, once it serves. Raises what starting was refused with."""
        await self.body.serving()
        return self.server

    async def probe(self) -> int:
        """See LaneActor.probe; each life has a number of its own, as each process has."""
        return self._number

    async def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """See TopicPartition.call."""
        return await (await self._served()).call(method, arguments)

    async def stats(self) -> dict[str, Any]:
        """See TopicPartition.stats."""
        try:
            server = await self._served()
        except PulsarException as error:
            return {"refused": str(error)}
        return {**await self._stats_of(server), "pid": os.getpid()}

    async def _stats_of(self, server: Any) -> dict[str, Any]:
        stats: dict[str, Any] = server.stats()
        return stats

    async def health(self) -> dict[str, Any]:
        """See LaneActor.health."""
        return {}

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """See LaneActor.apply_policies; settings that the test overrides hold in place of them."""
        await self.body.apply_policies(self._system.effective(self.topic, update))

    async def idle(self) -> Idle | None:
        """See LaneActor.idle."""
        return await self.body.idle()

    async def retire(self, least_idle_ms: int, with_clients: bool) -> Retired | None:
        """See LaneActor.retire."""
        retired = await self.body.retire(least_idle_ms, with_clients)
        self._has_retired = retired is not None and self.body.refusal is None
        return retired

    async def shutdown(self) -> None:
        """Do nothing: `stop` ends the actors of a stub cluster in order."""

    # --- ending --------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """The owner loop stands still from now on, as after SIGSTOP, until `thaw`."""
        stands = threading.Event()

        def stand_still() -> None:
            stands.set()
            self._thawed.wait()

        with self._lock:
            if self.is_dead:
                return
            self._thawed.clear()
            self.owner.loop.call_soon_threadsafe(stand_still)
        stands.wait(_FREEZE_S)

    @property
    def stands_still(self) -> bool:
        """Whether it was frozen."""
        return not self._thawed.is_set()

    def thaw(self) -> None:
        """Go on after `freeze`."""
        self._thawed.set()

    def kill(self) -> None:
        """End without any shutdown: connections break, what was not written is lost, calls fail."""
        with self._lock:
            if self.is_dead:
                return
            self.is_dead = True
        self.thaw()
        if self._has_retired:
            # All is closed, and on disk.
            self._end_disks()
            self.owner.stop()
            self._has_let_go()
            return
        try:
            # In the middle of its start nobody could say which locks to drop. One that waits for its
            # partition has none yet, or its cursor's.
            self.body.starting.exception(_KILL_PATIENCE_S)
        except (CancelledError, FutureTimeout):
            self.body.starting.cancel()
        self.owner.submit(self._drop).result(_START_TIMEOUT_S)
        self._end_disks()
        self.owner.stop()
        self._let_go()
        self._has_let_go()

    def _has_let_go(self) -> None:
        if self._cluster_lock is not None:
            self._cluster_lock.release()
        self._ended.set()

    def wait_ended(self) -> None:
        """Return when a dead actor has let go of everything."""
        self._ended.wait(_START_TIMEOUT_S)

    async def _drop(self) -> None:
        for lane in self.host.lanes.lanes:
            lane._abort()  # noqa: SLF001 - a dying process sends nothing more
        for disk in self._disks():
            _forget_jobs(disk)
        for call in list(self._calls):
            call.cancel()
        # A connection whose making is cancelled half way is not told of its end: it is made, and then closed.
        spared = {asyncio.current_task(), *self.host.lanes.welcoming}
        for task in asyncio.all_tasks() - spared:
            task.cancel()
        await self.host.lanes.close()
        await self.host.close()

    def _end_disks(self) -> None:
        for disk in self._disks():
            disk.stop()

    def stop(self) -> None:
        """End in order, as the controller's shutdown does."""
        with self._lock:
            if self.is_dead:
                return
            self.is_dead = True
        self.thaw()
        if not self._is_closed_in_order():
            self.owner.submit(self.host.close).result(_START_TIMEOUT_S)
            self._let_go()
        self._end_disks()
        self.owner.stop()
        self._has_let_go()

    def _is_closed_in_order(self) -> bool:
        """Close what has started; returns False if nothing has."""
        try:
            self.body.starting.result(_STOP_PATIENCE_S)
        except FutureTimeout:
            # It may wait for its partition, which has ended before it.
            self.body.starting.cancel()
            return False
        except (PulsarException, CancelledError):
            return False
        if self.server is None:
            return False  # it was refused
        try:
            self.owner.submit(self._close).result(_START_TIMEOUT_S)
        except (PulsarException, CancelledError):
            return False
        return True

    async def _close(self) -> None:
        raise NotImplementedError


class StubPartition(StubActor):
    """A TopicPartition."""

    def __init__(
        self,
        address: str,
        directory: str,
        identity: TopicIdentity,
        owner_store: tuple[str, str],
        must_exist: bool,
        disk: Disk,
        *shared: Any,
        is_restarted: bool,
    ) -> None:
        self.directory = Path(directory)
        self._identity = identity
        self._owner_store = owner_store
        """The name of the actor of its store, and the store's id."""
        self._must_exist = must_exist
        self._disk = disk
        self._held: HeldLock | None = None
        self._shipping: ShippingLink | None = None
        self.server: PartitionServer | None = None
        super().__init__(address, *shared, is_restarted=is_restarted)

    def _acquire_lock(self, path: Path) -> HeldLock:
        held = self._held = take_lock(path)
        if self.is_dead:
            # Its start took longer than anybody waits for when it is killed; the kernel would drop the lock.
            held.release()
            raise NotConnected(f"{self.address}: the actor died at its start")
        return held

    def _open_ledger(self) -> ManagedLedger:
        check_is_store(Path(self.in_force.settings.data_dir), self._owner_store[1])
        must_exist = self._must_exist or (self._is_restarted and self._was_made())
        ledger = open_ledger(
            self.directory,
            self._identity,
            self.in_force.settings,
            self.clock.now_ms(),
            self._shipping,
            lambda: taken_back(self.cluster, *self._owner_store, self._identity, self.directory),
            must_exist=must_exist,
            disk=self._disk,
            acquire_lock=self._acquire_lock,
        )
        if not self._must_exist:
            self._in_a_thread(self._tell_made)
        return ledger

    def _was_made(self) -> bool:
        """Ask the controller, as a restarted TopicPartition does."""
        made: bool = self.cluster.controller("was_made", self.topic, timeout_s=_START_TIMEOUT_S)
        return made

    def _tell_made(self) -> None:
        self.cluster.controller("made", self.topic, timeout_s=_START_TIMEOUT_S)

    async def _start(self) -> ActorServer:
        settings, number = self.in_force.settings, self._identity.number
        self._shipping = shipping_link(settings, number, "", self.owner.loop)
        self.server = await start_partition(
            self._open_ledger,
            self.directory,
            self.in_force,
            self.clock,
            self.host,
            self._fatal,
            self._report_unused,
            lambda: self.cluster,
            self._shipping,
        )
        return self.server

    def _report_unused(self) -> None:
        self._in_a_thread(lambda: self.cluster.controller("report_unused", self.topic, timeout_s=_REPORT_S))

    async def _stats_of(self, server: Any) -> dict[str, Any]:
        stats: dict[str, Any] = await server.gather_stats()
        return stats

    async def trim_now(self) -> bool:
        """See TopicPartition.trim_now."""
        server = await self._served()
        await server.trim_now()
        return bool(server.is_unused)

    async def _drop(self) -> None:
        _cut(self._shipping)
        await super()._drop()

    def _disks(self) -> list[DiskThread]:
        return [self.server._parts.disk] if self.server is not None else []  # noqa: SLF001

    def _let_go(self) -> None:
        if self._held is not None:
            self._held.release()

    async def _close(self) -> None:
        await self.host.close()
        assert self.server is not None
        await self.server.close()


class StubDispatcher(StubActor):
    """A SubscriptionDispatcher."""

    def __init__(self, address: str, request: SubscriptionRequest, *shared: Any, is_restarted: bool) -> None:
        self.request = request
        self.server: DispatcherServer | None = None
        self._made: DispatcherServer | None = None
        """The server before it serves, too.

        It may wait for its partition with its cursor open.
        """
        super().__init__(address, *shared, is_restarted=is_restarted)

    async def _start(self) -> ActorServer:
        self._made = new_dispatcher(
            self.request,
            self.cluster,
            partition_name(self.request.topic),
            self.in_force,
            self.clock,
            self.host,
            self._fatal,
        )
        await start_dispatcher(self._made, self.host)
        self.server = self._made
        return self.server

    async def _stats_of(self, server: Any) -> dict[str, Any]:
        await server.look_around()
        return await super()._stats_of(server)

    async def serves(self) -> bool:
        """See SubscriptionDispatcher.serves."""
        with suppress(PulsarException):
            await self._served()
        return self.server is not None and await self.server.serves()

    def _disks(self) -> list[DiskThread]:
        return [] if self._made is None else list(self._made.disks)

    async def _drop(self) -> None:
        if self._made is not None:
            self._made.leave()
            if isinstance(subscriptions := self._made.subscriptions, StoredSubscriptions):
                _cut(subscriptions._shipping)  # noqa: SLF001
        await super()._drop()

    def _let_go(self) -> None:
        if self._made is None:
            return
        for subscription in self._made.subscriptions.served.values():
            if not isinstance(subscription, ServedSubscription):
                continue
            durability = subscription._durability  # noqa: SLF001
            if isinstance(durability, CursorFlusher):
                durability._store.close()  # noqa: SLF001 - gives the directory up without a flush

    async def _close(self) -> None:
        await self.host.close()
        assert self.server is not None
        await self.server.close()


def _forget_jobs(disk: DiskThread) -> None:
    """Drop the jobs that the disk thread has not begun yet."""
    jobs = disk._jobs  # noqa: SLF001
    while True:
        try:
            jobs.get_nowait()
        except queue.Empty:
            return


def _cut(shipping: ShippingLink | None) -> None:
    """Close a dying process's connection to its store, which hears nothing more."""
    if shipping is not None:
        shipping._is_closed = True  # noqa: SLF001
        shipping._lose()  # noqa: SLF001


class StubNonPersistentPartition(StubActor):
    """A TopicPartition of a non-persistent topic."""

    def __init__(self, address: str, *shared: Any, is_restarted: bool) -> None:
        self.server: NonPersistentPartitionServer | None = None
        super().__init__(address, *shared, is_restarted=is_restarted)

    async def _start(self) -> ActorServer:
        await self.host.start()
        self.server = NonPersistentPartitionServer(
            self.topic, self.in_force, self.clock, self.owner.loop, self.host, self._fatal
        )
        return self.server

    async def trim_now(self) -> bool:
        """See TopicPartition.trim_now."""
        await self._served()
        return False

    def _disks(self) -> list[DiskThread]:
        return []

    def _let_go(self) -> None:
        """Let go of nothing: a partition without a disk holds nothing."""

    async def _close(self) -> None:
        await self.host.close()
