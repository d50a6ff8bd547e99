"""The actors of a stub cluster by name, one life after the other."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.errors import BrokerGone, Moved, NotConnected
from pulsar_ray.ledger.disk import Disk
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.stub_actor import StubActor, StubDispatcher, StubNonPersistentPartition, StubPartition
from pulsar_ray.testing.stub_policies import StubPolicies
from pulsar_ray.testing.stub_process import AskedCluster
from pulsar_ray.transport.actor_names import parse_dispatcher_name, partition_name, topic_of_actor
from pulsar_ray.transport.cluster import SubscriptionRequest


def anybody() -> None:
    """No process ends among those that only tests run in."""


class StubLives:
    """Starts actors when they are needed, as Ray and the controller do.

    `lock` is held around all that starts or ends `actors`. `on_started` is told of partitions that start,
    `take_left` answers which consumers have left a dispatcher that starts, and `on_unused` is told of
    partitions that nobody has used for long. While it `withholds_policies`, dispatchers that were restarted
    learn none. Actors that are `kept_down` do not start, nor those of partitions that are `away`.
    """

    def __init__(
        self,
        cluster: AskedCluster,
        actors: dict[str, StubActor],
        lock: threading.RLock,
        topics: TopicRegistry,
        settings: Settings,
        policies: StubPolicies,
        data_dir: Path,
        lane_directory: Path,
        clock: Clock,
        disk: Disk,
        *,
        on_started: Callable[[str], None],
        take_left: Callable[[str], Sequence[int]],
        on_unused: Callable[[str], object],
        withholds_policies: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._actors = actors
        self._lock = lock
        self._topics = topics
        self._settings = settings
        self._policies = policies
        self._data_dir = data_dir
        self._lane_directory = lane_directory
        self._clock = clock
        self._disk = disk
        self._on_started = on_started
        self._take_left = take_left
        self._on_unused = on_unused
        self.kept_down: set[str] = set()
        self.away: dict[str, str] = {}
        """By partition, where it lies."""
        self.fatal_errors: list[BaseException] = []
        self._withholds_policies = withholds_policies
        self.has_ended = False
        self.gone: BrokerGone | None = None

    def running(self, address: str, check: Callable[[], None] = anybody) -> StubActor:
        with self._lock:
            check()
            if topic_of_actor(address) in self.away:
                raise Moved(f"{address}: its node is gone")
            actor = self._actors.get(address)
            if actor is not None and not actor.is_dead:
                return actor
            if isinstance(actor, StubDispatcher):
                # Restarted: the subscription is there already, or was removed and must not come back.
                again = actor.request
                request = SubscriptionRequest(
                    again.topic,
                    again.subscription,
                    again.durable,
                    again.initial_position,
                    {},
                    # One of a non-persistent topic is as long as its actor, restarts included.
                    not (again.durable and is_persistent(again.topic)),
                    again.left,
                )
                return self.dispatcher(address, request, is_restarted=True)
            is_partition = parse_dispatcher_name(address) is None
            row = self._topics.partition(TopicName.parse(topic_of_actor(address))) if is_partition else None
            if row is None:
                raise Moved(f"{address}: no such actor")
            return self.partition(row)

    def partition(self, row: PartitionRow) -> StubActor:
        address = partition_name(row.name)
        actor = self._actors.get(address)
        if actor is not None and not actor.is_dead:
            return actor
        self._check_may_start(address)
        self._on_started(row.name)
        if actor is not None:
            actor.wait_ended()
        if not is_persistent(row.name):
            actor = self._actors[address] = StubNonPersistentPartition(
                row.name,
                self._settings,
                self._policies.of(row.name),
                self._lane_directory,
                self._clock,
                self._fatal,
            )
            return actor
        actor = StubPartition(
            self._data_dir / "p" / str(row.number),
            TopicIdentity(row.number, row.name, row.partition_index),
            self._settings,
            self._policies.of(row.name),
            self._lane_directory,
            self._clock,
            self._disk,
            self._fatal,
            partial(self._report_unused, row.name),
            must_exist=row.has_ledger,
            when_made=lambda: self._topics.catalog.opened(row.name),
        )
        self._actors[address] = actor
        return actor

    def dispatcher(
        self, address: str, request: SubscriptionRequest, *, is_restarted: bool = False
    ) -> StubActor:
        self._check_may_start(address)
        old = self._actors.get(address)
        if old is not None:
            old.kill()
            old.wait_ended()
        current = self._policies.of(request.topic)
        policies = old.created_with if is_restarted and isinstance(old, StubDispatcher) else current
        if not is_restarted:
            request = dataclasses.replace(request, left=tuple(self._take_left(address)))
        actor = StubDispatcher(
            address,
            request,
            self._cluster,
            self._settings,
            policies,
            self._lane_directory,
            self._clock,
            self._fatal,
            is_restarted=is_restarted,
            answered=None if self._withholds_policies() else current,
        )
        self._actors[address] = actor
        return actor

    def _report_unused(self, partition: str) -> None:
        threading.Thread(target=self._on_unused, args=(partition,), daemon=True).start()

    def start_to_elect(self, address: str) -> None:
        """As Passivation does for a dispatcher that has lost its active consumer."""
        topic, subscription, durable = parse_dispatcher_name(address) or ("", "", False)
        row = self._topics.partition(TopicName.parse(topic))
        if row is not None and row.name not in self.away:
            self.partition(row)
            with suppress(NotConnected):
                self.dispatcher(
                    address, SubscriptionRequest(topic, subscription, durable, "latest", create=False)
                )

    def check_runs(self) -> None:
        if self.has_ended:
            raise self.gone or NotConnected("the broker has ended")

    def _check_may_start(self, address: str) -> None:
        self.check_runs()
        if address in self.kept_down:
            raise NotConnected(f"{address}: the actor is restarting")

    def _fatal(self, actor: StubActor, error: BaseException) -> None:
        """The actor's process would have ended itself."""
        self.fatal_errors.append(error)
        threading.Thread(target=actor.kill, daemon=True).start()


def is_persistent(topic: str) -> bool:
    """Whether a topic is stored."""
    return TopicName.parse(topic).is_persistent
