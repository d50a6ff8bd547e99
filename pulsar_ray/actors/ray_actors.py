"""The actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

import ray

from pulsar_ray.actors import options
from pulsar_ray.actors.actor_system import ActorKind
from pulsar_ray.actors.broker_process import begin_broker_process
from pulsar_ray.actors.delayed_delivery_tracker import DelayedDeliveryTracker
from pulsar_ray.actors.stores.store_actor import StoreActor
from pulsar_ray.actors.subscription_dispatcher import SubscriptionDispatcher
from pulsar_ray.actors.topic_compactor import TopicCompactor
from pulsar_ray.actors.topic_partition import TopicPartition
from pulsar_ray.actors.watching.own_reports import OwnReports
from pulsar_ray.broker.catalog.founding import CatalogOrder
from pulsar_ray.broker.figures.actor_report import ActorReport
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.lane.waiting import within
from pulsar_ray.transport.actor_names import CONTROLLER, NAMESPACE
from pulsar_ray.transport.ray_calls import translated
from pulsar_ray.transport.this_ray import (
    actor_id,
    alive_hosts,
    draining_nodes,
    is_running,
    node_id,
    running_names,
    was_restarted,
)

ENDED_EXIT_CODE = 71
SPARE_ASKED_FOR_S = 0.1
"""Ray has begun a process by then, which does not serve yet."""
PROCESS_STARTS_S = 2.0

_CLASSES: dict[ActorKind, type[Any]] = {
    ActorKind.PARTITION: TopicPartition,
    ActorKind.DISPATCHER: SubscriptionDispatcher,
    ActorKind.TRACKER: DelayedDeliveryTracker,
    ActorKind.COMPACTOR: TopicCompactor,
    ActorKind.STORE: StoreActor,
}


class RayActor:
    """An ActorHandle."""

    def __init__(self, name: str, raw: Any) -> None:
        self.raw = raw
        self._name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayActor) and actor_id(self.raw) == actor_id(other.raw)

    def __hash__(self) -> int:
        return hash(actor_id(self.raw))

    async def call(self, method: str, *arguments: Any, within_s: float | None = None) -> Any:
        """See ActorHandle."""
        what = f"{self._name}.{method}"
        with translated(what):
            try:
                return await within(getattr(self.raw, method).remote(*arguments), within_s)
            except ray.exceptions.RayError:
                raise  # among them one that is a TimeoutError, too: the actor's own, of a disk for instance
            except asyncio.TimeoutError:
                raise Timeout(f"{what} is not answered within {within_s} s") from None

    def is_running(self) -> bool:
        """See ActorHandle."""
        return is_running(self.raw)

    def kill(self) -> None:
        """See ActorHandle."""
        ray.kill(self.raw)

    def crash(self) -> None:
        """See ActorHandle."""
        ray.kill(self.raw, no_restart=False)


class RayActors:
    """The ActorSystem of the Ray that this process is on."""

    def create(self, kind: ActorKind, name: str, node_id: str | None, *arguments: Any) -> RayActor:
        """See ActorSystem."""
        return RayActor(name, options.create(_CLASSES[kind], name, node_id, *arguments))

    def begin_controller(self, data_dir: str, settings: Settings, order: CatalogOrder) -> RayActor:
        """See ActorSystem."""
        # No other actor's process needs its modules.
        from pulsar_ray.actors.controller import Controller  # noqa: PLC0415

        arguments = (data_dir, settings, order, self, OwnRayActor)
        return RayActor(CONTROLLER, options.create(Controller, CONTROLLER, order.node_id, *arguments))

    async def make_ready(self, node_id: str) -> float:
        """See ActorSystem."""
        spare = options.spare(node_id)
        await asyncio.sleep(SPARE_ASKED_FOR_S)
        ray.kill(spare)
        return PROCESS_STARTS_S

    def find(self, name: str) -> RayActor | None:
        """See ActorSystem."""
        try:
            return RayActor(name, ray.get_actor(name, namespace=NAMESPACE))
        except ValueError:
            return None

    def names(self) -> list[str]:
        """See ActorSystem."""
        return running_names()

    def hosts(self) -> dict[str, str]:
        """See ActorSystem."""
        return alive_hosts()

    def draining(self) -> set[str]:
        """See ActorSystem."""
        return draining_nodes()


class OwnRayActor:
    """The OwnActor of a Ray actor's process, which makes it when it begins."""

    def __init__(self) -> None:
        self._reports = OwnReports()

    @cached_property
    def node_id(self) -> str:
        """See OwnActor."""
        return node_id()

    @cached_property
    def was_restarted(self) -> bool:
        """See OwnActor."""
        return was_restarted()

    def begin(self, component: str, settings: Settings) -> None:
        """See OwnActor."""
        begin_broker_process(component, settings)

    def call(self, method: str) -> None:
        """See OwnActor."""
        # The handle has a name: with old versions of Ray its methods do not keep it alive.
        this = ray.get_runtime_context().current_actor
        getattr(this, method).remote()

    def report(self, settings: Settings, gather: Callable[[], Awaitable[ActorReport]]) -> None:
        """See OwnActor."""
        self._reports.begin(asyncio.get_running_loop(), settings, gather)

    def end(self, *, for_good: bool) -> None:
        """See OwnActor."""
        if for_good:
            ray.kill(ray.get_runtime_context().current_actor)
        else:
            os._exit(ENDED_EXIT_CODE)

    async def owner_died(self, call: Any) -> bool:
        """See OwnActor."""
        try:
            await call
        except ray.exceptions.OwnerDiedError:
            return True
        except (ray.exceptions.RayError, PulsarException):
            pass
        return False
