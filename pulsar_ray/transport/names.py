"""Names of the broker's actors, as `ray list actors` and the dashboard show them."""

from __future__ import annotations

NAMESPACE = "pulsar_ray"
CONTROLLER = "pulsar_ray-controller"
_DURABLE = " -> "
_READERS = " => "
_STORE_PREFIX = "pulsar_ray-store-"


def store_name(store_id: str) -> str:
    """The StoreActor of a data directory."""
    return f"{_STORE_PREFIX}{store_id}"


def partition_name(topic: str) -> str:
    """A TopicPartition is named after its full topic name."""
    return topic


def parse_dispatcher_name(name: str) -> tuple[str, str, bool] | None:
    """(partition topic, subscription, durable) of a dispatcher's name; None for another actor's."""
    for separator, durable in ((_DURABLE, True), (_READERS, False)):
        # A subscription may contain the separator, a topic cannot begin with one.
        topic, found, subscription = name.partition(separator)
        if found and "://" in topic:
            return topic, subscription, durable
    return None


def dispatcher_name(topic: str, subscription: str, durable: bool) -> str:
    """A durable subscription has its own dispatcher; a partition's non-durable cursors share one."""
    return f"{topic}{_DURABLE}{subscription}" if durable else f"{topic}{_READERS}readers"
