"""Non-persistent topics without partitions, and which names were deleted: no file knows them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.topic_name import TopicName

NO_STORE = ""
"""The store of what may run anywhere."""
KEPT_ENDED = 10_000
"""Names that ended last are remembered: whoever had the others open begins them anew."""


class UnstoredTopics:
    """The names of topics that no file knows.

    One that is gone with its actor and its controller is made again by its next use.
    """

    def __init__(self) -> None:
        self._names: set[str] = set()

    def find(self, topic: str) -> list[PartitionRow]:
        """The one partition of a known topic."""
        return [PartitionRow(topic, 0, topic, -1, NO_STORE, has_ledger=False)] if topic in self._names else []

    def add(self, topic: str) -> list[PartitionRow]:
        """The topic is known from now on."""
        self._names.add(topic)
        return self.find(topic)

    def discard(self, topic: str) -> None:
        """The topic was deleted."""
        self._names.discard(topic)

    def names(self, namespace: str) -> Iterable[str]:
        """The topics of a namespace."""
        return [name for name in self._names if TopicName.parse(name).namespace_name == namespace]


class EndedNames:
    """Topics and dispatchers that lay in no store and were deleted, each by its name.

    One that has died with its node is not among them: it begins anew for a client that had it open.
    """

    def __init__(self, limit: int = KEPT_ENDED) -> None:
        self._limit = limit
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """It was deleted; the one that was deleted first is forgotten at the limit."""
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._limit:
            self._names.popitem(last=False)

    def discard(self, name: str) -> None:
        """It was made anew."""
        self._names.pop(name, None)


def check_enabled(topic: TopicName, settings: Settings) -> None:
    """Raise NotAllowedError for a non-persistent topic where the broker does not serve them."""
    if not (topic.is_persistent or settings.enable_non_persistent_topics):
        raise NotAllowedError(
            f"{topic.full}: this broker serves no non-persistent topics; use persistent://, or start it with "
            "enable_non_persistent_topics"
        )
