"""Names of the broker's actors, as `ray list actors` and the dashboard show them.

Topics and subscriptions may have any name, also one that looks like "topic -> subscription": in actors' names
the arrows of a topic's own name are escaped, so that what follows the first arrow is the subscription.
"""

from __future__ import annotations

NAMESPACE = "pulsar_ray"
CONTROLLER = "pulsar_ray-controller"
_DURABLE = " -> "
_READERS = " => "
_STORE_PREFIX = "pulsar_ray-store-"
_ESCAPED = (("%", "%25"), ("->", "%2D>"), ("=>", "%3D>"))


def store_name(store_id: str) -> str:
    """The StoreActor of a data directory."""
    return f"{_STORE_PREFIX}{store_id}"


def partition_name(topic: str) -> str:
    """A TopicPartition is named after its full topic name."""
    for plain, escaped in _ESCAPED:
        topic = topic.replace(plain, escaped)
    return topic


def parse_partition_name(name: str) -> str:
    """The topic of a TopicPartition's name."""
    for plain, escaped in reversed(_ESCAPED):
        name = name.replace(escaped, plain)
    return name


def parse_dispatcher_name(name: str) -> tuple[str, str, bool] | None:
    """(partition topic, subscription, durable) of a dispatcher's name; None for another actor's."""
    for separator, durable in ((_DURABLE, True), (_READERS, False)):
        topic, found, subscription = name.partition(separator)
        if found and "://" in topic:
            return parse_partition_name(topic), subscription, durable
    return None


def topic_of_actor(name: str) -> str:
    """The partition that a partition's or dispatcher's actor name belongs to."""
    dispatcher = parse_dispatcher_name(name)
    return parse_partition_name(name) if dispatcher is None else dispatcher[0]


def dispatcher_name(topic: str, subscription: str, durable: bool) -> str:
    """A durable subscription has its own dispatcher; a partition's non-durable cursors share one."""
    topic = partition_name(topic)
    return f"{topic}{_DURABLE}{subscription}" if durable else f"{topic}{_READERS}readers"


def is_store_name(name: str) -> bool:
    """Whether a name is that of a StoreActor."""
    return name.startswith(_STORE_PREFIX)
