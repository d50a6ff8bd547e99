"""The controller's answers to administrators, given in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.errors import TopicNotFound
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.stub_administration import STORE, StubAdministration, finished
from pulsar_ray.testing.stub_passivation import StubPassivation
from pulsar_ray.testing.stub_tracker import StubTrackers
from pulsar_ray.transport.cluster import PartitionRoute, RouteFields


class StubController:
    """The methods of the Controller that concern topics, and those of its administration.

    `start` starts the actors of partitions, which `routes` does not.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        start: Callable[[list[PartitionRow]], list[PartitionRoute]],
        routes: Callable[[list[PartitionRow]], list[PartitionRoute]],
        describe_sleeping: Callable[[PartitionRow], dict[str, Any] | None],
        administration: StubAdministration,
        passivation: StubPassivation,
        restart: Callable[[list[PartitionRow]], None],
        trackers: StubTrackers,
        is_silent: Callable[[str], bool],
    ) -> None:
        self._topics = topics
        self._start = start
        self._routes = routes
        self._describe_sleeping = describe_sleeping
        self._administration = administration
        self._calls = administration.calls
        self._passivation = passivation
        self._restart = restart
        self.trackers = trackers
        self._is_silent = is_silent

    def create_topic(self, topic: str, partitions: int) -> None:
        """As Controller.create_topic."""
        self._topics.create(TopicName.parse(topic), partitions, lambda: [STORE])

    def prepare_partitions(self, topic: str, partitions: int) -> list[RouteFields]:
        """As Controller.prepare_partitions."""
        rows = self._topics.prepare_partitions(TopicName.parse(topic), partitions, lambda: [STORE])
        return [dataclasses.astuple(route) for route in self._start(rows)]

    def partitions(self, topic: str) -> list[RouteFields]:
        """As Controller.partitions."""
        rows = self._topics.resolve(TopicName.parse(topic), create=False, stores=list)
        return [dataclasses.astuple(route) for route in self._routes(rows)]

    def describe_sleeping(self, topic: str) -> dict[str, Any] | None:
        """As Controller.describe_sleeping."""
        row = self._topics.partition(TopicName.parse(topic))
        if row is None:
            raise TopicNotFound(f"the topic {topic} does not exist")
        return self._describe_sleeping(row)

    def is_silent(self, name: str) -> bool:
        """As Controller.is_silent."""
        return self._is_silent(name)

    def await_wake(
        self, client_id: str, parked: dict[str, list[tuple[int, bool]]], timeout_s: float
    ) -> list[str]:
        """As Controller.await_wake."""
        return self._passivation.await_wake(client_id, parked, timeout_s)

    def consumer_left(self, dispatcher: str, incarnation: int, calls_election: bool) -> None:
        """As Controller.consumer_left."""
        self._passivation.consumer_left(dispatcher, incarnation, calls_election)

    def delayed_tracker(self, topic: str, subscription: str) -> str:
        """As Controller.delayed_tracker."""
        return self.trackers.start(topic, subscription)

    def end_tracker(self, name: str) -> None:
        """As Controller.end_tracker."""
        self.trackers.end(name)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """As Controller.add_partitions."""
        self._topics.add_partitions(TopicName.parse(topic), partitions)

    def delete_topic(self, topic: str, force: bool) -> None:
        """As Controller.delete_topic."""
        finished(self._administration.ending.delete_topic(topic, force))

    def unload_topic(self, topic: str) -> None:
        """As Controller.unload_topic."""
        self._restart(self._topics.resolve(TopicName.parse(topic), create=False, stores=list))

    def list_topics(self, namespace: str, include_system: bool = False) -> list[tuple[str, int]]:
        """As Controller.list_topics."""
        return self._topics.topics(namespace, include_system=include_system)

    def policies_for(self, topic: str) -> PolicyUpdate:
        """As Controller.policies_for."""
        row = self._topics.partition(TopicName.parse(topic))
        if row is None:
            raise TopicNotFound(f"the topic {topic} does not exist")
        return self._topics.policies.update_for(row.topic)

    def heartbeats(self) -> list[tuple[str, str, str]]:
        """As Controller.heartbeats."""
        return [(STORE, "here", self._topics.heartbeat(STORE).full)]

    def tenants(self) -> list[str]:
        """As Controller.tenants."""
        return finished(self._calls.tenants())

    def tenant(self, name: str) -> dict[str, list[str]]:
        """As Controller.tenant."""
        return finished(self._calls.tenant(name))

    def create_tenant(self, name: str, info: dict[str, list[str]]) -> None:
        """As Controller.create_tenant."""
        finished(self._calls.create_tenant(name, info))

    def update_tenant(self, name: str, info: dict[str, list[str]]) -> None:
        """As Controller.update_tenant."""
        finished(self._calls.update_tenant(name, info))

    def delete_tenant(self, name: str, force: bool) -> None:
        """As Controller.delete_tenant."""
        finished(self._calls.delete_tenant(name, force))

    def namespaces(self, tenant: str) -> list[str]:
        """As Controller.namespaces."""
        return finished(self._calls.namespaces(tenant))

    def create_namespace(self, namespace: str, policies: dict[str, dict[str, Any]] | None = None) -> None:
        """As Controller.create_namespace."""
        finished(self._calls.create_namespace(namespace, policies))

    def delete_namespace(self, namespace: str, force: bool) -> None:
        """As Controller.delete_namespace."""
        finished(self._calls.delete_namespace(namespace, force))

    def abandon_change_logs(self, namespace: str) -> list[str]:
        """As Controller.abandon_change_logs."""
        return finished(self._calls.abandon_change_logs(namespace))

    def policies(self, subject: str, name: str = "") -> list[dict[str, Any]]:
        """As Controller.policies."""
        return [dataclasses.asdict(policy) for policy in finished(self._calls.policies(subject, name))]

    def set_policy(self, subject: str, name: str, value: dict[str, Any]) -> None:
        """As Controller.set_policy."""
        finished(self._calls.set_policy(subject, name, value))

    def remove_policy(self, subject: str, name: str) -> None:
        """As Controller.remove_policy."""
        finished(self._calls.remove_policy(subject, name))
