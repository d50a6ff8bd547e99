"""Handing policies to the partitions and dispatchers that run.

Level-triggered: an actor is told until it has confirmed what holds now, whatever was lost on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial

from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.actor_names import topic_of_actor

logger = logging.getLogger(__name__)

CALL_DEADLINE_S = 5.0
AT_ONCE_S = 1.0
"""The time that a change waits for its actors; the watch repeats to slower ones."""


class PolicyDelivery:
    """Belongs to the controller."""

    def __init__(self, topics: TopicRegistry, actors: BrokerActors) -> None:
        self._topics = topics
        self._actors = actors
        self._confirmed: dict[str, int] = {}
        """The version that each running actor has confirmed since this controller started, by its name."""
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._late: set[str] = set()
        self._repeated_version = -1

    def update_for(self, topic: str) -> PolicyUpdate:
        """Return the policies of a whole topic."""
        return self._topics.policies.update_for(topic)

    def created(self, name: str, update: PolicyUpdate) -> None:
        """An actor was created with these policies."""
        self._confirmed[name] = update.version

    async def changed(self, subject: str) -> None:
        """Notify the running actors of a namespace or topic, and wait a little for them."""
        await self._tell(self._concerned(subject))

    async def repeat(self) -> None:
        """Tell every running actor that has not confirmed what holds now."""
        handles = self._actors.handles
        self._confirmed = {name: version for name, version in self._confirmed.items() if name in handles}
        last = self._topics.catalog.policies.last_version
        is_news = last != self._repeated_version
        names = [name for name in handles if is_news or name in self._late or name not in self._confirmed]
        self._late.clear()
        try:
            await self._tell(names)
        except PulsarException:
            # The catalog could not be read: at the next look.
            self._late.update(names)
            raise
        self._repeated_version = last

    def _concerned(self, subject: str) -> list[str]:
        named = [(name, TopicName.parse(topic_of_actor(name))) for name in self._actors.handles]
        if "://" not in subject:
            return [name for name, topic in named if topic.namespace_name == subject]
        return [name for name, topic in named if subject in (topic.full, topic.partitioned_full)]

    async def _tell(self, names: Iterable[str]) -> None:
        calls: set[asyncio.Task[None]] = set()
        updates: dict[str, PolicyUpdate] = {}
        for name in names:
            row = self._topics.partition(TopicName.parse(topic_of_actor(name)))
            if row is None:
                continue
            if name in self._calls:
                calls.add(self._calls[name])
                continue
            if row.topic not in updates:
                updates[row.topic] = self._topics.policies.update_for(row.topic)
            if self._confirmed.get(name, 0) < updates[row.topic].version:
                call = asyncio.get_running_loop().create_task(self._tell_one(name, row.topic))
                self._calls[name] = call
                calls.add(call)
                call.add_done_callback(partial(self._told, name))
        if calls:
            await asyncio.wait(calls, timeout=AT_ONCE_S)

    def _told(self, name: str, _: asyncio.Task[None]) -> None:
        self._calls.pop(name, None)

    async def _tell_one(self, name: str, topic: str) -> None:
        """Tell one actor, again for as long as its policies change meanwhile."""
        while (handle := self._actors.handles.get(name)) is not None:
            try:
                update = self._topics.policies.update_for(topic)
                if self._confirmed.get(name, 0) >= update.version:
                    return
                await handle.call("apply_policies", update, within_s=CALL_DEADLINE_S)
            except PulsarException as error:
                self._late.add(name)
                logger.warning("%s has not taken its policies yet: %s", name, error)
                return
            if self._actors.handles.get(name) is handle:
                # A late answer undoes no later one.
                self._confirmed[name] = max(self._confirmed.get(name, 0), update.version)
