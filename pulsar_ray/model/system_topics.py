"""Topics that the broker keeps for itself, told by their names.

Nobody else creates, deletes or publishes to them, but for the heartbeat topics, to which a check publishes.
Everybody may consume from them.
"""

from __future__ import annotations

import zlib

from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.topic_name import NON_PERSISTENT, PERSISTENT, TopicName

SYSTEM_NAMESPACE = "pulsar/system"
CHANGE_EVENTS = "__change_events"
CHANGE_LOG_PARTITIONS = 4
RESOURCE_USAGE = TopicName.parse(f"{NON_PERSISTENT}://{SYSTEM_NAMESPACE}/resource-usage")
"""How busy the nodes are: the broker publishes to it while somebody reads it."""
RESOURCE_USAGE_PARTITIONS = 4
_HEARTBEAT = "heartbeat-"
_RESERVED = frozenset((CHANGE_EVENTS, "__transaction_buffer_snapshot"))
_RESERVED_ENDING = "__transaction_pending_ack"


def is_system_topic(topic: TopicName) -> bool:
    """Whether a topic, or the topic of a partition, is one of the broker's own."""
    if topic.namespace_name == SYSTEM_NAMESPACE:
        return True
    whole = topic.partitioned_full.split("/", 4)[-1]
    return whole in _RESERVED or whole.endswith(_RESERVED_ENDING)


def check_user_may_change(topic: TopicName) -> None:
    """Raise NotAllowedError for a system topic: nobody but the broker creates or deletes it."""
    if is_system_topic(topic):
        raise NotAllowedError(
            f"{topic.full} is a system topic: the broker makes it when it needs it, and keeps it; "
            "take another name"
        )


def check_user_may_publish(topic: str) -> None:
    """Raise NotAllowedError if only the broker publishes to a topic."""
    name = TopicName.parse(topic)
    if is_system_topic(name) and not is_heartbeat(name):
        raise NotAllowedError(
            f"{topic} is a system topic: only the broker publishes to it; publish to another topic"
        )


def heartbeat(store_id: str) -> TopicName:
    """Return the topic that a check of one store publishes to and reads from."""
    return TopicName.parse(f"{PERSISTENT}://{SYSTEM_NAMESPACE}/{_HEARTBEAT}{store_id}")


def is_heartbeat(topic: TopicName) -> bool:
    """Whether a topic is the heartbeat of a store."""
    return topic.namespace_name == SYSTEM_NAMESPACE and topic.local_name.startswith(_HEARTBEAT)


def system_change_log() -> TopicName:
    """Return the log of the tenants and namespaces of a cluster; it has no partitions."""
    return TopicName.parse(f"{PERSISTENT}://{SYSTEM_NAMESPACE}/{CHANGE_EVENTS}")


def change_log(namespace: str) -> TopicName:
    """Return the log of a namespace's policies and those of its topics."""
    return TopicName.parse(f"{PERSISTENT}://{namespace}/{CHANGE_EVENTS}")


def is_change_log(topic: TopicName) -> bool:
    """Whether a topic, or partition, is where changes are written by the broker."""
    if topic.namespace_name == SYSTEM_NAMESPACE:
        return topic == system_change_log()
    return topic.is_partition and topic.partitioned_full == change_log(topic.namespace_name).full


def change_log_partition(namespace: str, subject: str) -> TopicName:
    """Return the partition of a namespace's log that has all changes of one subject."""
    return change_log(namespace).partition(zlib.crc32(subject.encode()) % CHANGE_LOG_PARTITIONS)
