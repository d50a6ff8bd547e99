"""The controller's decisions about topics' names and numbers of partitions.

Synchronous, over the catalog; whoever asks starts the actors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from pulsar_ray.broker.catalog.administration.effective_policies import EffectivePolicies
from pulsar_ray.broker.catalog.catalog import Catalog, PartitionRow, Subscriptions
from pulsar_ray.broker.catalog.unstored_topics import EndedNames, UnstoredTopics, check_enabled
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError, ServiceUnitNotReady, TopicNotFound
from pulsar_ray.model.topic_name import (
    RESOURCE_USAGE,
    RESOURCE_USAGE_PARTITIONS,
    SYSTEM_NAMESPACE,
    TopicName,
    check_user_may_change,
    heartbeat,
    is_system_topic,
    nearest_topic,
    system_change_log,
)

logger = logging.getLogger(__name__)


class TopicRegistry:
    """Topics in the catalog, and those that are in no file.

    Their namespaces' policies hold for new ones. `stores` gives the ids of the stores that take new
    partitions.
    """

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self.catalog = catalog
        self.policies = EffectivePolicies(catalog, settings)
        self.unstored = UnstoredTopics()
        self.ended = EndedNames()
        self._settings = settings

    def resolve(
        self, name: TopicName, *, create: bool, stores: Callable[[], Iterable[str]]
    ) -> list[PartitionRow]:
        """Return the partitions of a topic, or a named one; create the topic if allowed.

        Raises TopicNotFound, NotAllowedError for a number that no partition of a partitioned topic has.
        """
        check_enabled(name, self._settings)
        own = self.partition(name)
        if own is not None:
            return [own]
        return self.catalog.partitions(name.full) or self._auto_create(name, create, stores)

    def begin_again(self, name: TopicName) -> None:
        """Make a lost topic anew that no file knows, unless it was deleted.

        A client has it open; it was gone with its actor and its controller. Raises TopicNotFound for a
        missing namespace, NotAllowedError where the broker serves no such topics.
        """
        is_stored = name.is_persistent or self.catalog.partition_count(name.partitioned_full)
        if not (is_stored or self.is_known(name)) and name.full not in self.ended:
            check_enabled(name, self._settings)
            self._check_namespace(name.namespace_name)
            self.unstored.add(name.full)

    def may_create_subscription(
        self, row: PartitionRow, dispatcher: str, *, asked: bool, was_open: bool
    ) -> bool:
        """Whether a dispatcher that is started now may create its subscription.

        One of a non-persistent topic is gone with its process. For consumers that had it open it begins anew,
        unless it was deleted.
        """
        if TopicName.parse(row.name).is_persistent:
            return asked and self.policies.settings_of(row.topic).allow_auto_subscription_creation
        if asked:
            self.ended.discard(dispatcher)
        return asked or (was_open and dispatcher not in self.ended)

    def subscription_ended(self, topic: TopicName, dispatcher: str) -> None:
        """Take in that a subscription was deleted; those of stored topics know it themselves."""
        if not topic.is_persistent:
            self.ended.add(dispatcher)

    def partition(self, name: TopicName) -> PartitionRow | None:
        """A partition, or topic without partitions, by its own name."""
        return next(iter(self.unstored.find(name.full)), None) or self.catalog.partition(name.full)

    def row_of(self, partition: str) -> PartitionRow:
        """Return a partition by its own name. Raises TopicNotFound."""
        row = self.partition(TopicName.parse(partition))
        if row is None:
            raise TopicNotFound(f"the topic {partition} does not exist")
        return row

    def is_known(self, name: TopicName) -> bool:
        """Whether there is such a topic, or partition."""
        return self.partition(name) is not None or self.catalog.partition_count(name.full) is not None

    def _auto_create(
        self, name: TopicName, create: bool, stores: Callable[[], Iterable[str]]
    ) -> list[PartitionRow]:
        if name.is_partition and (count := self.catalog.partition_count(name.partitioned_full)):
            raise NotAllowedError(
                f"{name.full} is no partition of {name.partitioned_full}, which has {count}"
            )
        if name.partitioned_full == RESOURCE_USAGE.full and create:
            # Its first reader makes it; the broker publishes to it from then on.
            self.catalog.create(RESOURCE_USAGE, self.auto_partitions(name), self._emptiest_first(stores()))
            return self.resolve(name, create=False, stores=stores)
        if is_system_topic(name):
            raise TopicNotFound(
                f"the system topic {name.full} does not exist: the broker had no use for it yet"
            )
        if not (create and self.policies.settings_of(name.namespace_name).allow_auto_topic_creation):
            raise self.not_found(name)
        return self._new(name, self.auto_partitions(name), stores)

    def auto_partitions(self, name: TopicName) -> int:
        """Return the number of partitions of a topic that its first use creates."""
        if name.partitioned_full == RESOURCE_USAGE.full:
            return RESOURCE_USAGE_PARTITIONS
        settings = self.policies.settings_of(name.namespace_name)
        is_partitioned = settings.allow_auto_topic_creation_type == "partitioned" and not name.is_partition
        return settings.default_num_partitions if is_partitioned else 0

    def create(
        self, name: TopicName, partitions: int, stores: Callable[[], Iterable[str]]
    ) -> list[PartitionRow]:
        """Create a topic; 0 partitions is an unpartitioned one.

        Raises NotAllowedError if it exists, for a system topic, and for one more than the namespace may have.
        """
        check_enabled(name, self._settings)
        check_user_may_change(name)
        if name.is_partition:
            raise NotAllowedError(
                f"{name.full}: a name that ends in -partition-<number> is reserved for partitions"
            )
        if partitions < 0:
            raise InvalidConfiguration(
                f"{partitions} partitions: the number of partitions must be more than 0"
            )
        return self._new(name, partitions, stores)

    def _new(
        self, name: TopicName, partitions: int, stores: Callable[[], Iterable[str]]
    ) -> list[PartitionRow]:
        if self.unstored.find(name.full) or self.catalog.partition_count(name.full) is not None:
            raise NotAllowedError(f"the topic {name.full} already exists")
        self._check_namespace(name.namespace_name)
        self._check_room(name, max(partitions, 1))
        if name.is_persistent or partitions:
            rows = self.catalog.create(name, partitions, self._emptiest_first(stores()))
        else:
            rows = self.unstored.add(name.full)
            self.ended.discard(name.full)
        in_stores = ", ".join(sorted({row.store_id[:8] for row in rows if row.store_id})) or "none"
        event(logger, "made, with %d partitions, in stores %s", partitions, in_stores, topic=name.full)
        return rows

    def _check_namespace(self, namespace: str) -> None:
        """Raise TopicNotFound for a missing namespace, ServiceUnitNotReady while not all are known."""
        tenants, log = self.catalog.tenants, system_change_log().full
        if not tenants.has_namespace(namespace) and log in self.catalog.change_logs.unknown:
            raise ServiceUnitNotReady(
                f"namespace {namespace!r} is not known, and {log}, which names all of them, has not been "
                "read since the catalog was made anew: see to the node that has it"
            )
        tenants.check_namespace(namespace)

    def heartbeat(self, store_id: str) -> TopicName:
        """Return the heartbeat topic of a store, made there if it is new."""
        name = heartbeat(store_id)
        if self.catalog.partition_count(name.full) is None:
            self.catalog.create(name, 0, [store_id])
        return name

    def create_change_log(
        self, name: TopicName, partitions: int, stores: Callable[[], Iterable[str]]
    ) -> None:
        """Create a log of changes, or add the partitions that it lacks."""
        if self.catalog.partition_count(name.full) is None:
            self.catalog.create(name, partitions, self._emptiest_first(stores()))
        elif partitions:
            self.catalog.complete(name, partitions, self._emptiest_first(stores()))

    def _check_room(self, name: TopicName, more: int) -> None:
        """Raise NotAllowedError if a namespace may not have so many more topics."""
        limit = self.policies.settings_of(name.namespace_name).max_topics_per_namespace
        if not limit or is_system_topic(name):
            return
        known = self.topics(name.namespace_name)
        count = sum(max(partitions, 1) for _, partitions in known)
        if count + more > limit:
            raise NotAllowedError(
                f"Exceed maximum number of topics in namespace. {name.namespace_name} has {count} of "
                f"{limit}, partitions counted, and {name.full} would add {more}: delete topics, or raise its "
                "policy max_topics_per_namespace"
            )

    def _emptiest_first(self, stores: Iterable[str]) -> list[str]:
        used = self.catalog.partitions_per_store()
        return sorted(stores, key=lambda store: (used.get(store, 0), store))

    def prepare_partitions(
        self, name: TopicName, partitions: int, stores: Callable[[], Iterable[str]]
    ) -> list[PartitionRow]:
        """Prepare the partitions that a topic grows by: the first step.

        Nobody else sees them yet.

        Raises TopicNotFound, NotAllowedError for a topic without partitions and unless it is growth.
        """
        check_user_may_change(name)
        if name.is_partition:
            raise NotAllowedError(f"{name.full} is a partition: give the topic, {name.partitioned_full}")
        count = self.count(name)
        if not count:
            raise NotAllowedError(
                f"{name.full} is not partitioned and stays so: create a partitioned topic under another name"
            )
        if partitions <= count:
            raise NotAllowedError(
                f"{name.full} has {count} partitions and can only grow: {partitions} is not more than that"
            )
        self._check_room(name, partitions - count)
        return self.catalog.prepare_partitions(name, partitions, self._emptiest_first(stores()))

    def prepared_partitions(self, name: TopicName, partitions: int) -> list[PartitionRow]:
        """Return the rows that `add_partitions` would add. Raises TopicNotFound."""
        count = self.count(name)
        rows = self.catalog.all_partitions(name.full)
        if len(rows) < partitions:
            raise TopicNotFound(f"the topic {name.full} was deleted while it grew: create it again")
        return [row for row in rows if count <= row.partition_index < partitions]

    def forget_store(
        self, store_id: str, stores: Callable[[], Iterable[str]], subscriptions: Subscriptions
    ) -> list[PartitionRow]:
        """Begin the partitions of a lost store anew, as `Catalog.forget_store`."""
        return self.catalog.forget_store(store_id, self._emptiest_first(stores()), subscriptions)

    def move_unopened(self, store_id: str, stores: Callable[[], Iterable[str]]) -> list[PartitionRow]:
        """Give partitions that were never opened to other stores, as `Catalog.move_unopened`."""
        return self.catalog.move_unopened(store_id, self._emptiest_first(stores()))

    def add_partitions(self, name: TopicName, partitions: int) -> None:
        """Add prepared partitions, the second step: from now on clients see them. May come twice."""
        self.prepared_partitions(name, partitions)
        before = self.count(name)
        self.catalog.add_partitions(name.full, partitions)
        if before != partitions:
            event(logger, "has %d partitions from now on, and had %d", partitions, before, topic=name.full)

    def count(self, name: TopicName) -> int:
        """Return how many partitions a topic has, 0 for one without. Raises TopicNotFound."""
        self._check_namespace(name.namespace_name)
        count = 0 if self.unstored.find(name.full) else self.catalog.partition_count(name.full)
        if count is None:
            raise self.not_found(name)
        return count

    def rows_of(self, name: TopicName) -> list[PartitionRow]:
        """Everything a topic consists of, to be deleted.

        Raises TopicNotFound, NotAllowedError for a system topic.
        """
        if not (name.partitioned_full == name.full and self.catalog.partition_count(name.full) == 0):
            # One without partitions was made by a user before its name was reserved.
            check_user_may_change(name)
        rows = self.unstored.find(name.full) or self.catalog.all_partitions(name.full)
        if not rows:
            raise self.not_found(name)
        return rows

    def not_found(self, name: TopicName) -> TopicNotFound:
        """Return the error for a missing topic or partition, with the nearest name."""
        whole = name.partitioned_full
        count = self.catalog.partition_count(whole)
        if name.is_partition and count:
            if name.partition_index < count:
                return TopicNotFound(f"{name.full} is a partition: give the topic, {whole}")
            return TopicNotFound(
                f"{name.full} does not exist: {whole} has {count} partitions, numbered from 0"
            )
        names = [topic for topic, _ in self.topics_of(name.namespace_name) if not _is_system(topic)]
        near = nearest_topic(name, names)
        remedy = f"did you mean {near}?" if near else "create it with `pulsar-ray topics create`"
        return TopicNotFound(f"the topic {name.full} does not exist; {remedy}")

    def rows_below(self, subject: str) -> list[PartitionRow]:
        """The stored partitions of a topic, or of all topics of a namespace."""
        names = [subject] if "://" in subject else [name for name, _ in self.topics(subject)]
        return [row for name in names for row in self.catalog.all_partitions(name)]

    def forget(self, name: TopicName) -> list[PartitionRow]:
        """Delete a topic; returns the rows of one that is stored, as they were."""
        if self.unstored.find(name.full):
            self.unstored.discard(name.full)
            self.ended.add(name.full)
            return []
        return self.catalog.delete(name.full)

    def topics(self, namespace: str, *, include_system: bool = False) -> list[tuple[str, int]]:
        """Return (full name, partitions or 0) of a namespace's topics, by name.

        Those of the broker's own only if asked for. Raises TopicNotFound if the namespace does not exist.
        """
        self._check_namespace(namespace)
        return [
            (name, partitions)
            for name, partitions in self.topics_of(namespace)
            if include_system or not _is_system(name)
        ]

    def topics_of(self, namespace: str) -> list[tuple[str, int]]:
        """Return all topics as `topics` does, also of a namespace that is being deleted."""
        stored = self.catalog.topics_of(namespace)
        return sorted([*stored, *((name, 0) for name in self.unstored.names(namespace))])


def _is_system(topic: str) -> bool:
    # Most names need no parsing: there may be thousands in a namespace.
    return ("__" in topic or SYSTEM_NAMESPACE in topic) and is_system_topic(TopicName.parse(topic))
