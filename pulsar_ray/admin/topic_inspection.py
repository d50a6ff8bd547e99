"""Looking at topics, which wakes nobody and changes nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.admin.topic_stats import internal_stats, partition_stats, sum_of_partitions
from pulsar_ray.errors import (
    NotAllowedError,
    NotConnected,
    OperationNotSupported,
    ServiceUnitNotReady,
    Timeout,
    WrongNode,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import PartitionRoute, check_any_there

CALLS_AT_ONCE = 16
STATS_TIMEOUT_S = 10.0
"""An actor that is starting on a busy machine is waited for so long."""
_SILENT = "its process does not answer on {host}"
_GONE = (
    "its process on {host} has ended, or is starting: its consumers and what they have acknowledged are not "
    "known just now"
)


class TopicInspection:
    """Stats, subscriptions and ends of topics.

    Creates no topic, and wakes no partition whose files say enough.
    """

    def __init__(self, calls: TopicCalls) -> None:
        self._calls = calls

    def stats(self, topic: str, *, subscriptions: bool = True) -> dict[str, Any]:
        """Ask all partitions at the same time, and add up what they answer."""
        routes = self._calls.all_routes(topic)
        with ThreadPoolExecutor(min(len(routes), CALLS_AT_ONCE)) as calls:
            partitions = calls.map(lambda route: self._partition(route, subscriptions), routes)
            found = {route.topic: stats for route, stats in zip(routes, partitions, strict=True)}
        name = TopicName.parse(topic).full
        schema = self._schema(name)
        if name in found:
            return {**found[name], **schema}
        return {**sum_of_partitions(list(found.values())), **schema, "partitions": found}

    def _schema(self, name: str) -> dict[str, Any]:
        """The type and version of the topic's schema; nothing of the broker's own topics."""
        try:
            return dict(self._calls.ask_controller("call_part", "schemas", "in_short", name))
        except NotAllowedError:
            return {}

    def _partition(self, route: PartitionRoute, subscriptions: bool) -> dict[str, Any]:
        unknown: dict[str, str] = {}
        for is_last in (False, False, True):
            partition = self._described(route)
            durable: dict[str, Any] = {}
            readers: dict[str, Any] = {}
            if not subscriptions or "refused" in partition:
                break
            served = [s["name"] for s in partition["subscriptions"] if s["durable"] and s["isServed"]]
            found = self._running(route, served)
            if None in found and not is_last:
                # A dispatcher has left since: the partition then knows better than its last report.
                continue
            for each in found:
                durable.update(each or {})
            unknown = {
                name: _SILENT if each == {} else _GONE
                for name, each in zip(served, found, strict=True)
                if not each
            }
            if partition["hasReaders"]:
                readers = self._calls.running_stats(route.topic, "", durable=False) or {}
            break
        stats = {**partition_stats(partition, durable, readers), "host": route.host}
        for name, why in unknown.items():
            stats["subscriptions"][name]["problem"] = why.format(host=route.host)
        return stats

    def _running(self, route: PartitionRoute, subscriptions: list[str]) -> list[dict[str, Any] | None]:
        """Ask the dispatchers of durable subscriptions at the same time: some may stand still."""

        def ask(name: str) -> dict[str, Any] | None:
            return self._calls.running_stats(route.topic, name, durable=True)

        if len(subscriptions) < 2:
            return [ask(name) for name in subscriptions]
        with ThreadPoolExecutor(min(len(subscriptions), CALLS_AT_ONCE)) as calls:
            return list(calls.map(ask, subscriptions))

    def _described(self, route: PartitionRoute) -> dict[str, Any]:
        try:
            check_any_there([route])
            return self._calls.partition_stats(route, min(self._calls.timeout_s, STATS_TIMEOUT_S))
        except WrongNode as error:
            return {"refused": error.text, "away": True}
        except (NotConnected, ServiceUnitNotReady, Timeout) as error:
            return {"refused": f"it does not answer on {route.host or 'its node'}: {error}"}

    def stats_internal(self, topic: str) -> dict[str, Any]:
        """Describe the ledgers and cursors of each partition that is not away."""
        found = {route.topic: self._internal(route) for route in self._calls.routes_there(topic)}
        name = TopicName.parse(topic).full
        return found.get(name) or {"metadata": {"partitions": len(found)}, "partitions": found}

    def _internal(self, route: PartitionRoute) -> dict[str, Any]:
        partition = self._calls.serving_stats(route)
        cursors = {}
        # Subscriptions of non-persistent topics have no cursor that anybody could describe.
        has_cursors = TopicName.parse(route.topic).is_persistent
        for known in partition["subscriptions"] if has_cursors else ():
            if known["durable"] and known["isServed"]:
                cursors[known["name"]] = self._calls.ask_dispatcher(route, known["name"], "describe_cursor")
        return internal_stats(partition, cursors)

    def subscriptions(self, topic: str) -> list[str]:
        """Collect the names of durable subscriptions and connected others from all partitions."""
        found: set[str] = set()
        for route in self._calls.routes_there(topic):
            partition = self._calls.serving_stats(route)
            found |= {known["name"] for known in partition["subscriptions"]}
            if partition["hasReaders"]:
                found |= set(self._calls.running_stats(route.topic, "", durable=False) or {})
        return sorted(found)

    def last_message_id(self, topic: str) -> MessageId:
        """Ask the only partition for its newest message."""
        route, *others = self._calls.all_routes(topic)
        if others or route.topic != TopicName.parse(topic).full:
            raise OperationNotSupported(
                f"{topic} has no last message id of its own: give one partition, for instance {route.topic}"
            )
        check_any_there([route])
        last = self._calls.last_message(route)
        ledger_id, entry_id = last["position"]
        if ledger_id < 0 or entry_id < 0:
            return MessageId()
        size = last["batch_size"]
        return MessageId(
            route.partition, ledger_id, entry_id, size - 1, batch_size=size, topic_name=route.topic
        )
