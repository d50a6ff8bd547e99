"""The policies of a stub cluster's actors, as the controller delivers them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.errors import NotAllowedError, NotConnected, SubscriptionNotFound
from pulsar_ray.model.policies import NO_POLICIES, PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.setting_fields import SettingValue
from pulsar_ray.testing.stub_actor import StubActor
from pulsar_ray.transport.actor_names import topic_of_actor

_ANSWER_TIMEOUT_S = 5.0


class StubPolicies:
    """Hands running actors their topic's policies when these change; `lock` guards `actors`."""

    def __init__(
        self, topics: TopicRegistry, actors: Mapping[str, StubActor], lock: AbstractContextManager[Any]
    ) -> None:
        self._topics = topics
        self._actors = actors
        self._lock = lock
        self._overridden: dict[str, PolicyUpdate] = {}

    def of(self, topic: str) -> PolicyUpdate:
        """As Controller.policies_for, unless settings of the topic are overridden."""
        name = TopicName.parse(topic)
        overridden = self._overridden.get(name.partitioned_full)
        row = self._topics.partition(name)
        if overridden is not None or row is None:
            return overridden or NO_POLICIES
        return self._topics.policies.update_for(row.topic)

    def override(self, topic: str, settings: Mapping[str, SettingValue]) -> None:
        """Override settings for a topic, in place of former overrides, and hand them over."""
        name = TopicName.parse(topic).partitioned_full
        with self._lock:
            update = PolicyUpdate(self.of(topic).version + 1, dict(settings))
            self._overridden[name] = update
            actors = [
                actor
                for address, actor in self._actors.items()
                if TopicName.parse(topic_of_actor(address)).partitioned_full == name and not actor.is_dead
            ]
        for actor in actors:
            _apply(actor, update)

    def hand_over(self, subject: str) -> None:
        """Let running actors of a namespace, or topic, have the policies that hold now."""
        for address, actor in list(self._actors.items()):
            topic = TopicName.parse(topic_of_actor(address))
            if subject in (topic.namespace_name, topic.full, topic.partitioned_full) and not actor.is_dead:
                _apply(actor, self.of(topic.full))


def _apply(actor: StubActor, update: PolicyUpdate) -> None:
    with suppress(NotConnected, NotAllowedError, SubscriptionNotFound):  # those that do not serve
        actor.serving(_ANSWER_TIMEOUT_S)
        actor.result(actor.submit(partial(actor.apply_policies, update)), _ANSWER_TIMEOUT_S)
