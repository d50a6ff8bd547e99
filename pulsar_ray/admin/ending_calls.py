"""Ending, emptying and deleting topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.client.options.checks import check_optional
from pulsar_ray.errors import NotAllowedError, PulsarException
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import PartitionRoute


class EndingCalls:
    """Ends, empties and clears all partitions of topics; each is started for it."""

    def __init__(self, calls: TopicCalls) -> None:
        self._calls = calls

    def terminate(self, topic: str) -> MessageId:
        """Terminate a topic without partitions, or one partition of another."""
        name = _persistent(topic)
        routes = self._calls.routes(topic)
        if [route.topic for route in routes] != [name.full]:
            raise NotAllowedError(
                f"Termination of a partitioned topic is not allowed: {name.full} has {len(routes)} "
                "partitions; use terminate_partitioned_topic"
            )
        return self._terminate(routes[0])

    def terminate_partitions(self, topic: str) -> dict[int, MessageId]:
        """Terminate every partition of a topic."""
        name = _persistent(topic)
        routes = self._calls.serving_routes(topic)
        if [route.topic for route in routes] == [name.full]:
            raise NotAllowedError(f"{name.full} is not partitioned: use terminate_topic")
        return {route.partition: self._terminate(route) for route in routes}

    def _terminate(self, route: PartitionRoute) -> MessageId:
        ledger_id, entry_id = self._calls.ask_partition(route, "terminate")
        return MessageId(route.partition, ledger_id, entry_id, topic_name=route.topic)

    def truncate(self, topic: str) -> None:
        """Delete all messages of a topic."""
        _persistent(topic)
        for route in self._calls.serving_routes(topic):
            self._calls.ask_partition(route, "truncate")

    def compact(self, topic: str) -> None:
        """Begin to compact all partitions of a topic; see `each_of`."""
        _persistent(topic)
        request_id = uuid.uuid4().hex

        def compact(partition: str) -> None:
            for route in self._calls.serving_routes(partition):
                self._calls.ask_partition(route, "compact", request_id=request_id)

        each_of((route.topic for route in self._calls.serving_routes(topic)), compact)

    def compaction_status(self, topic: str) -> dict[str, dict[str, Any]]:
        """How the last compaction of each partition stands."""
        _persistent(topic)
        return {
            route.topic: self._calls.ask_partition(route, "compaction_status")
            for route in self._calls.serving_routes(topic)
        }

    def offload(self, topic: str, message_id: MessageId | None) -> None:
        """Begin to leave closed segments of all partitions to the object store; see `each_of`."""
        _persistent(topic)
        check_optional("message_id", message_id, MessageId, "a MessageId")
        request_id = uuid.uuid4().hex
        before = [-1, -1]
        routes = self._calls.serving_routes(topic)
        if message_id is not None:
            # Nothing is before the earliest one, whose numbers would stand for everything.
            before = [0, 0] if message_id.ledger_id() < 0 else [message_id.ledger_id(), message_id.entry_id()]
            if len(routes) > 1:
                raise NotAllowedError(
                    f"{topic} has {len(routes)} partitions: give the id without one, or name a partition"
                )

        def offload(partition: str) -> None:
            for route in self._calls.serving_routes(partition):
                self._calls.ask_partition(route, "offload", request_id=request_id, before=before)

        each_of((route.topic for route in routes), offload)

    def fetch_back(self, topic: str) -> None:
        """Begin to bring segments of all partitions back from the object store; see `each_of`."""
        _persistent(topic)
        request_id = uuid.uuid4().hex

        def fetch_back(partition: str) -> None:
            for route in self._calls.serving_routes(partition):
                self._calls.ask_partition(route, "fetch_back", request_id=request_id)

        each_of((route.topic for route in self._calls.serving_routes(topic)), fetch_back)

    def offload_status(self, topic: str) -> dict[str, dict[str, Any]]:
        """How the last offload of each partition stands."""
        _persistent(topic)
        return {
            route.topic: self._calls.ask_partition(route, "offload_status")
            for route in self._calls.serving_routes(topic)
        }

    def clear_backlog(self, topics: Iterable[str], subscription: str) -> None:
        """Clear the backlogs of topics; see `each_of`."""
        each_of(topics, lambda topic: self._clear(topic, subscription))

    def _clear(self, topic: str, subscription: str) -> None:
        for route in self._calls.serving_routes(topic):
            self._calls.ask_partition(route, "clear_backlog", subscription=subscription)


def each_of(topics: Iterable[str], work: Callable[[str], None]) -> None:
    """Do work on each topic, and then raise the first error.

    Its text names all topics that failed."""
    failed: dict[str, PulsarException] = {}
    for topic in topics:
        try:
            work(topic)
        except PulsarException as error:
            failed[topic] = error
    if len(failed) == 1:
        raise next(iter(failed.values()))
    if failed:
        first = next(iter(failed.values())).again()
        first.text = "; ".join(f"{topic}: {error.text}" for topic, error in failed.items())
        raise first


def _persistent(topic: str) -> TopicName:
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise NotAllowedError(f"{name.full} is non-persistent: it stores nothing; use a persistent:// topic")
    return name
