"""Which schemas the values of topics are read with: all that their registries have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pulsar_ray.admin.admin import Admin
from pulsar_ray.data.planning.plan import ReadRange, Topics
from pulsar_ray.data.reading.typed_values import TopicVersions, TypedValues, column_type
from pulsar_ray.errors import InvalidConfiguration, SchemaNotFound
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.model.topic_schema import TopicSchema


@dataclass(frozen=True)
class TypedTopics:
    """The schema that values of topics are read as, and the versions of each."""

    topic: str
    """A topic whose newest schema it is."""
    target: TopicSchema
    written: Mapping[str, Mapping[int, TopicSchema]] = field(compare=False, repr=False)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of values."""
        return column_type(self.topic, self.target)

    def of(self, topic: str) -> TypedValues:
        """Return what reads values of a topic, or of that of a partition."""
        name = TopicName.parse(topic).partitioned_full
        return TypedValues(name, TopicVersions(self.target, self.written.get(name, {})))

    def with_versions_of(self, admin: Admin, topics: Iterable[str]) -> TypedTopics:
        """Return the same with the versions that topics have by now."""
        return TypedTopics(
            self.topic, self.target, {name: registered_versions(admin, name) for name in topics}
        )


def whole_topics(topics: Topics, ranges: Iterable[ReadRange]) -> list[str]:
    """Return the full names of topics that were asked for, of their partitions too."""
    names = [each.topic for each in ranges] if isinstance(topics, re.Pattern) else topics
    return list(dict.fromkeys(TopicName.parse(name).partitioned_full for name in names))


def typed_topics(admin: Admin, topics: Iterable[str]) -> TypedTopics | None:
    """Ask the registry how to read topics; None where none has a schema.

    Raises InvalidConfiguration for topics whose newest schemas have different columns, or none.
    """
    written, newest = {}, {}
    for topic in topics:
        written[topic] = registered_versions(admin, topic)
        try:
            newest[topic] = admin.schemas.get(topic).schema
        except SchemaNotFound:
            continue
    found: TypedTopics | None = None
    for topic, target in newest.items():
        if found is None:
            found = TypedTopics(topic, target, written)
        kind = column_type(topic, target)
        if kind != found.type or target.type != found.target.type:
            raise InvalidConfiguration(
                f"the newest schemas of {found.topic} and {topic} have different columns ({found.type}, as "
                f"{found.target.type}, and {kind}, as {target.type}): read these topics one by one"
            )
    return found


def registered_versions(admin: Admin, topic: str) -> dict[int, TopicSchema]:
    """Return all versions whose texts the registry has, by their numbers.

    Messages may have those that were deleted.
    """
    found = {each.version: each.schema for each in admin.schemas.versions(topic)}
    # A deletion takes a number, so that there are some below those that are left only if one was deleted.
    for number in set(range(max(found, default=-1))) - found.keys():
        try:
            found[number] = admin.schemas.get(topic, number).schema
        except SchemaNotFound:
            continue
    return found
