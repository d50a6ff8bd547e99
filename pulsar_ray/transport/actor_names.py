"""Names of the broker's actors, as `ray list actors` and the dashboard show them.

Topics and subscriptions may have any name, also one that looks like "topic -> subscription": in actors' names
the arrows of a topic's own name are escaped, so that what follows the first arrow is the subscription.
"""

from __future__ import annotations

NAMESPACE = "pulsar_ray"
CONTROLLER = "pulsar_ray-controller"
GATEWAY = "pulsar_ray-http"
_DURABLE = " -> "
_READERS = " => "
_TRACKER = " ~> "
_STORE_PREFIX = "pulsar_ray-store-"
_ESCAPED = (("%", "%25"), ("->", "%2D>"), ("=>", "%3D>"), ("~>", "%7E>"))


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
    parts = _parts(name)
    if parts is None or parts[1] == _TRACKER:
        return None
    return parts[0], parts[2], parts[1] == _DURABLE


def parse_tracker_name(name: str) -> tuple[str, str] | None:
    """(partition topic, subscription) of a tracker's name; None for another actor's."""
    parts = _parts(name)
    return (parts[0], parts[2]) if parts is not None and parts[1] == _TRACKER else None


def _parts(name: str) -> tuple[str, str, str] | None:
    """Topic, arrow and subscription of a name; the first arrow counts."""
    arrows = [(name.find(arrow), arrow) for arrow in (_DURABLE, _READERS, _TRACKER) if arrow in name]
    if not arrows:
        return None
    topic, arrow, subscription = name.partition(min(arrows)[1])
    return (parse_partition_name(topic), arrow, subscription) if "://" in topic else None


def topic_of_actor(name: str) -> str:
    """The partition that a partition's, dispatcher's or tracker's actor name belongs to."""
    parts = _parts(name)
    return parse_partition_name(name) if parts is None else parts[0]


def dispatcher_name(topic: str, subscription: str, durable: bool) -> str:
    """A durable subscription has its own dispatcher; a partition's non-durable cursors share one."""
    topic = partition_name(topic)
    return f"{topic}{_DURABLE}{subscription}" if durable else f"{topic}{_READERS}readers"


def tracker_name(topic: str, subscription: str) -> str:
    """The tracker of a durable subscription's delayed messages on one partition."""
    return f"{partition_name(topic)}{_TRACKER}{subscription}"


def compactor_name(topic: str) -> str:
    """The actor that compacts a partition is named as a tracker of no subscription."""
    return tracker_name(topic, "")


def beside_name(first: str, node_id: str) -> str:
    """Names the actor beside the broker on one more node.

    `first` is the name of the first such actor, as GATEWAY.
    """
    return f"{first}-{node_id}"


def node_beside(first: str, name: str) -> str:
    """The node in such a name; "" of another actor's."""
    return name.removeprefix(f"{first}-") if name.startswith(f"{first}-") else ""


def is_store_name(name: str) -> bool:
    """Whether a name is that of a StoreActor."""
    return name.startswith(_STORE_PREFIX)
