"""Topic names: {persistent|non-persistent}://tenant/namespace/topic and their short forms."""

from __future__ import annotations

import bisect
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_ray.errors import InvalidTopicName

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
