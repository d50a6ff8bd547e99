"""Tells the registry what a producer writes, or a consumer reads with."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.errors import InvalidConfiguration, SchemaNotFound
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.model.topic_schema import TopicSchema, version_number
from pulsar_ray.session.requests import NO_SCHEMA

logger = logging.getLogger(__name__)

Writer = tuple[str, bytes]
"""The topic of messages, and the version that they carry."""
NO_WRITER: Writer = ("", b"")
"""Of messages without a schema."""


class Registry(Protocol):
    """The part of a client's links that asks the registry."""

    def ask_registry(self, method: str, *arguments: Any, deadline: float) -> Any: ...


class CopiedSchema(BytesSchema):
    """Bytes that are copies of another topic's messages of one version, which they keep."""

    def __init__(self, source: str, version: int) -> None:
        super().__init__()
        self.source = source
        self.version = version


def writer_of(block: ReceivedBlock) -> Writer:
    """Return the topic and version of a block's messages."""
    if version_number(block.schema_version) is None:
        return NO_WRITER
    return TopicName.parse(block.topic_name).partitioned_full, block.schema_version


def schema_of_copies(writer: Writer) -> BytesSchema:
    """Return the schema of a producer of copies of messages."""
    topic, written = writer
    version = version_number(written)
    return BytesSchema() if version is None else CopiedSchema(topic, version)


def written_version(
    registry: Registry, topic: TopicName, schema: Schema, producer_name: str | None, deadline: float
) -> int:
    """Return the version of a producer's messages; NO_SCHEMA for bytes.

    One that is new is registered.

    Raises IncompatibleSchema, with the reason.
    """
    if type(schema) is BytesSchema:
        return NO_SCHEMA
    by = _by("producer", producer_name)
    if isinstance(schema, CopiedSchema):
        copied = schema.source, schema.version, topic.full, by
        try:
            version: int = registry.ask_registry("copy", *copied, deadline=deadline)
        except SchemaNotFound as error:
            # Its producer claimed what was never registered. Nobody can read it, and it may go away.
            logger.warning("messages are copied to %s without their schema: %s", topic.full, error)
            return NO_SCHEMA
        return version
    if schema.schema_info().schema_type() == SchemaType.AUTO_CONSUME:
        raise InvalidConfiguration(f"{schema} is for consumers: a producer needs the schema of its values")
    given = schema.registered()
    if given is None:
        return NO_SCHEMA
    return int(registry.ask_registry("register", topic.full, given.fields(), by, deadline=deadline))


def check_readable(
    registry: Registry, topic: TopicName, schema: Schema, consumer_name: str, deadline: float
) -> None:
    """Raise IncompatibleSchema unless a topic can be read with a schema.

    An idle topic without one gets it.
    """
    given = None if type(schema) is BytesSchema else schema.registered()
    if given is not None:
        by = _by("consumer", consumer_name)
        registry.ask_registry("read_with", topic.full, given.fields(), by, deadline=deadline)


def finder_of(registry: Registry, timeout_s: Callable[[], float]) -> Callable[[str, int], TopicSchema]:
    """Return a function that gets the schema of a topic's version from the registry."""

    def find(topic: str, version: int) -> TopicSchema:
        deadline = time.monotonic() + timeout_s()
        return TopicSchema.of(registry.ask_registry("get", topic, version, deadline=deadline))

    return find


def _by(kind: str, name: str | None) -> str:
    return asking_for(f"{kind} {name!r:.60}" if name else f"a {kind}")


def asking_for(whom: str) -> str:
    """Say who asks, for those who find a version later."""
    return f"{whom} of process {os.getpid()} on {_host()}"


@lru_cache(maxsize=1)
def _host() -> str:
    return socket.gethostname()
