"""Topic names: {persistent|non-persistent}://tenant/namespace/topic and their short forms.

And tenants, namespaces, and the system topics: the broker keeps those for itself. Nobody else creates,
deletes or publishes to them, but for the heartbeat topics, to which a check publishes. Everybody may consume
from them.
"""

from __future__ import annotations

import bisect
import difflib
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_ray.errors import InvalidConfiguration, InvalidTopicName, NotAllowedError

PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
MAX_TOPIC_NAME_BYTES = 2048  # the full name stands in the 4 KiB header of each segment

MAX_PARTITIONS = 10_000
"""Of one topic: each is a process while it is used."""

_PARTITION_MARK = "-partition-"
# As Pulsar reads it: "-partition-01" and "-partition--1" are part of an ordinary name.
_PARTITION_SUFFIX = re.compile(r"(?s)(?P<base>.*)-partition-(?P<index>0|[1-9][0-9]{0,9})\Z")
_NAMED_ENTITY = re.compile(r"[-=:.A-Za-z0-9_]+\Z")
_COMPARED = 500
"""Names on either side, in sorted order, among which a nearest one is looked for."""
_REMEDY = "use 'topic', 'tenant/namespace/topic' or '{persistent|non-persistent}://tenant/namespace/topic'"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A valid name of a whole topic or of one partition.

    `partition_index` is -1 for a whole topic.
    """

    domain: str
    tenant: str
    namespace: str
    local_name: str
    partition_index: int = -1

    @classmethod
    def parse(cls, name: str) -> TopicName:
        """Parse a full or short name.

        Raises InvalidTopicName, and ValueError for anything but a str.
        """
        if not isinstance(name, str):
            raise ValueError(f"Argument topic={name!r:.200} must be a str: {_REMEDY}")
        domain, tenant, namespace, local_name = _split(name)
        if domain not in (PERSISTENT, NON_PERSISTENT):
            raise _invalid(name, f"the domain {domain!r} does not exist")
        for part, value in (("tenant", tenant), ("namespace", namespace)):
            if not _NAMED_ENTITY.match(value):
                raise _invalid(name, f"the {part} {value!r} must consist of letters, digits and -=:._")
        match = _PARTITION_SUFFIX.match(local_name)
        index = int(match["index"]) if match else -1
        if index > 2**31 - 1:
            match, index = None, -1
        _check_local_name(name, match["base"] if match else local_name)
        topic = cls(domain, tenant, namespace, local_name, index)
        if len(topic.full.encode()) > MAX_TOPIC_NAME_BYTES:
            raise _invalid(name[:80] + "...", f"it is longer than {MAX_TOPIC_NAME_BYTES} bytes of UTF-8")
        return topic

    @property
    def full(self) -> str:
        """domain://tenant/namespace/topic, with the partition suffix of a partition."""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"

    @property
    def namespace_name(self) -> str:
        """tenant/namespace."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        return self.domain == PERSISTENT

    @property
    def is_partition(self) -> bool:
        return self.partition_index >= 0

    @property
    def partitioned_full(self) -> str:
        """The full name of the whole topic, without a partition suffix."""
        if not self.is_partition:
            return self.full
        return self.full[: -len(f"{_PARTITION_MARK}{self.partition_index}")]

    def partition(self, index: int) -> TopicName:
        """Partition `index` of this topic. ValueError if this is a partition or `index` negative."""
        if self.is_partition or index < 0:
            raise ValueError(f"{self.full} has no partition {index}")
        local_name = f"{self.local_name}{_PARTITION_MARK}{index}"
        return TopicName(self.domain, self.tenant, self.namespace, local_name, index)

    def __str__(self) -> str:
        return self.full


def is_namespace(name: str) -> bool:
    """Whether it is a valid tenant/namespace."""
    tenant, _, namespace = name.partition("/")
    return all(_NAMED_ENTITY.match(part) for part in (tenant, namespace))


def nearest_topic(name: TopicName, topics: Sequence[str]) -> str:
    """Return the existing topic whose name is nearest to a missing one, or "".

    `topics` are the full names of the topics of its namespace, sorted. Of very many only those that begin
    alike are looked at.
    """
    at = bisect.bisect(topics, name.partitioned_full)
    found = {topic.split("/", 4)[-1]: topic for topic in topics[max(0, at - _COMPARED) : at + _COMPARED]}
    wanted = name.partitioned_full.split("/", 4)[-1]
    near = difflib.get_close_matches(wanted, found, n=1, cutoff=0.5)
    return found[near[0]] if near else ""


def _split(name: str) -> tuple[str, str, str, str]:
    domain, scheme, rest = name.partition("://")
    if scheme:
        parts = rest.split("/", 2)
        if len(parts) == 3:
            return domain, parts[0], parts[1], parts[2]
    else:
        parts = name.split("/")
        if len(parts) == 1:
            return PERSISTENT, "public", "default", name
        if len(parts) == 3:
            return PERSISTENT, parts[0], parts[1], parts[2]
    raise _invalid(name, f"it has {len(parts)} parts")


def _check_local_name(name: str, base: str) -> None:
    if not base.strip():
        raise _invalid(name, "the topic's own name is empty")
    if "\0" in base:
        raise _invalid(name, "it contains a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in base):
        raise _invalid(name, "it contains a lone surrogate, which UTF-8 cannot express")


def _invalid(name: str, reason: str) -> InvalidTopicName:
    return InvalidTopicName(f"{name!r} is not a topic name, {reason}: {_REMEDY}")


SYSTEM_NAMESPACE = "pulsar/system"
CHANGE_EVENTS = "__change_events"
CHANGE_LOG_PARTITIONS = 4
RESOURCE_USAGE = TopicName.parse(f"{NON_PERSISTENT}://{SYSTEM_NAMESPACE}/resource-usage")
"""How busy the nodes are: the broker publishes to it while somebody reads it."""
RESOURCE_USAGE_PARTITIONS = 4
_HEARTBEAT = "heartbeat-"
_RESERVED = frozenset((CHANGE_EVENTS, "__transaction_buffer_snapshot"))
_RESERVED_ENDING = "__transaction_pending_ack"


def whole_topic(full: str) -> str:
    """Return `partitioned_full` of a valid full name; of most without parsing it."""
    return TopicName.parse(full).partitioned_full if _PARTITION_MARK in full else full


def is_system_name(full: str) -> bool:
    """Return `is_system_topic` of a valid full name; of most without parsing it."""
    return ("__" in full or SYSTEM_NAMESPACE in full) and is_system_topic(TopicName.parse(full))


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


MAX_NAMESPACE_BYTES = 512
"""The longest tenant/namespace: its topics' full names have at most 2048 bytes."""
_LETTERS = "letters, digits and -=:._, and not . or .. alone"


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """The roles and clusters of a tenant: kept and answered, and heeded by nothing yet."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()

    @classmethod
    def of(cls, admin_roles: Any = (), allowed_clusters: Any = ()) -> TenantInfo:
        """Check roles and clusters. Raises InvalidConfiguration unless they are texts."""
        return cls(_texts("admin_roles", admin_roles), _texts("allowed_clusters", allowed_clusters))

    def replaced(self, changes: Mapping[str, Any]) -> TenantInfo:
        """Return the info with other fields. Raises InvalidConfiguration for one that there is not."""
        fields = {"admin_roles": self.admin_roles, "allowed_clusters": self.allowed_clusters}
        for name in changes:
            if name not in fields:
                raise InvalidConfiguration(f"a tenant has no {name!r}: it has {', '.join(fields)}")
        return TenantInfo.of(**{**fields, **changes})

    def described(self) -> dict[str, list[str]]:
        """Return the fields by name."""
        return {"admin_roles": list(self.admin_roles), "allowed_clusters": list(self.allowed_clusters)}


def check_tenant_name(name: Any) -> None:
    """Raise InvalidConfiguration for a text that is no name of a tenant."""
    if not isinstance(name, str) or not is_namespace(f"{name}/x") or not _is_safe([name]):
        raise InvalidConfiguration(f"{name!r:.100} cannot be a tenant: use {_LETTERS}")


def check_namespace_name(name: Any) -> None:
    """Raise InvalidTopicName for a text that is no name of a namespace."""
    if not isinstance(name, str) or not is_namespace(name) or not _is_safe(name.split("/")):
        raise InvalidTopicName(
            f"{name!r:.100} is not a namespace: use 'tenant/namespace', each of {_LETTERS}"
        )


def _is_safe(parts: list[str]) -> bool:
    return "." not in parts and ".." not in parts and sum(map(len, parts)) < MAX_NAMESPACE_BYTES


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidConfiguration(f"{name} is {value!r:.100}: give a list of texts")
    texts = tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidConfiguration(f"{name} is {list(texts)!r:.100}: give a list of texts that are not empty")
    return texts
