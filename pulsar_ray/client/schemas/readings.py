"""Reads values by the schema version that their block carries."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from pulsar_ray.client.options.schema import KeyedReading, Schema
from pulsar_ray.errors import (
    OperationNotSupported,
    PulsarException,
    SchemaNotFound,
    SchemaSerializationException,
)
from pulsar_ray.format.arrow_types import schema_of
from pulsar_ray.format.columnar import columns_of
from pulsar_ray.format.payload import DecodedBlock
from pulsar_ray.format.typed_rows import TypedRows, rows_of_payloads
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.model.topic_schema import TopicSchema, version_number

logger = logging.getLogger(__name__)

FindSchema = Callable[[str, int], TopicSchema]
"""find(topic, version) asks the registry. Raises SchemaNotFound."""
_MOST_VERSIONS = 256
"""A consumer remembers how to read so many versions of a topic."""


class SchemaReadings:
    """How one consumer reads its topics' values: with its schema, by the writer's. Thread-safe."""

    def __init__(self, schema: Schema, find: FindSchema) -> None:
        self._schema = schema
        self._find = find
        self._lock = threading.Lock()
        self._topics: dict[str, TopicReadings] = {}

    def of_topic(self, topic: str) -> TopicReadings:
        """Return those of a topic, or of that of a partition."""
        name = TopicName.parse(topic).partitioned_full
        with self._lock:
            if name not in self._topics:
                self._topics[name] = TopicReadings(name, self._schema, self._find)
            return self._topics[name]

    def drop(self, topic: str) -> None:
        """Keep those of a topic no longer: another one may get its name."""
        with self._lock:
            self._topics.pop(TopicName.parse(topic).partitioned_full, None)


class TopicReadings:
    """One reading for each version of a topic."""

    def __init__(self, topic: str, schema: Schema, find: FindSchema) -> None:
        self._topic = topic
        self._schema = schema
        self._find = find
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, WrittenValues] = OrderedDict()

    def forget(self) -> None:
        """Ask again for every version: the topic may be another one of its name."""
        with self._lock:
            self._known.clear()

    def of(self, written: bytes | None) -> WrittenValues:
        """Return how values of a version are read; asks nobody yet."""
        key = written or b""
        found = self._known.get(key)
        if found is None:
            with self._lock:
                found = self._known[key] = WrittenValues(self._topic, key, self._schema, self._find)
                if len(self._known) > _MOST_VERSIONS:
                    self._known.popitem(last=False)
        return found


class Unreadable(NamedTuple):
    """Stands for a value that cannot be read."""

    error: PulsarException


class WrittenValues:
    """Decodes values that were written with one version of a topic's schema."""

    __slots__ = ("_decode", "_find", "_found", "_rows", "_schema", "_topic", "_written")

    def __init__(self, topic: str, written: bytes, schema: Schema, find: FindSchema) -> None:
        self._topic = topic
        self._written = written
        self._schema = schema
        self._find = find
        self._decode: Callable[[bytes], Any] | None = None
        self._rows: Callable[[pa.RecordBatch], list[Any]] | None = None
        self._found: TopicSchema | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Take along what the registry says: a message in another process has nobody to ask."""
        try:
            found = self._writer()
        except ValueError:
            found = None  # it is met again there, before anybody is asked
        except PulsarException as error:
            return WrittenValues, (self._topic, self._written, self._schema, partial(_answer, error))
        return WrittenValues, (self._topic, self._written, self._schema, partial(_answer, found))

    def decode(self, data: bytes) -> Any:
        """Return the value.

        Raises SchemaSerializationException for one that does not fit, and what asking the registry raises.
        """
        try:
            decode = self._decode
            if decode is None:
                decode = self._decode = self._schema.reading(self._writer())
            return decode(data)
        except PulsarException:
            raise
        except Exception as error:  # a schema and what it is given may raise anything
            raise self._unreadable(error) from error

    @property
    def takes_keys(self) -> bool:
        """Whether values may be made of a message's key as well (`decode_pair`)."""
        return self._schema.takes_keys

    def decode_pair(self, data: bytes | None, key: str | None, *, is_encoded: bool) -> Any:
        """Return the value of a message with this key; None for a tombstone.

        Raises as `decode`.
        """
        try:
            decode = self._decode
            if decode is None:
                decode = self._decode = self._schema.reading(self._writer())
            if isinstance(decode, KeyedReading):
                return decode.pair(data, key, is_encoded=is_encoded)
            return None if data is None else decode(data)
        except PulsarException:
            raise
        except Exception as error:  # a schema and what it is given may raise anything
            raise self._unreadable(error) from error

    def values_of_rows(self, decoded: DecodedBlock) -> list[Any]:
        """Return the values of a block whose rows share columns, None for tombstones.

        One that does not fit is an `Unreadable`. Raises as `decode`.
        """
        rows = decoded.rows()
        try:
            read = self._rows
            if read is None:
                read = self._rows = self._schema.rows_reading(self._writer())
            if read is not None and not rows.null_count:
                return read(columns_of(rows))
        except PulsarException:
            raise
        except Exception:  # a schema and what it is given may raise anything
            logger.debug("rows of a block are read one by one", exc_info=True)
        return [None if data is None else self._value_or_error(data) for data in decoded.values()]

    def read_rows(self, rows: pa.StructArray, typed: TypedRows) -> pa.RecordBatch:
        """Return rows that share columns as those of a schema. Raises as `decode`."""
        try:
            self._check_rows()
            return typed.read(columns_of(rows))
        except ValueError as error:
            raise self._unreadable(error) from error

    def read_payloads(self, payloads: Sequence[bytes | None], typed: TypedRows) -> pa.RecordBatch:
        """Return payloads of messages alone as columns of a schema, null for tombstones.

        Raises as `decode`.
        """
        try:
            writer = self._check_rows()
            return typed.read(
                rows_of_payloads(payloads, typed.schema if writer is None else schema_of(writer.text))
            )
        except ValueError as error:
            raise self._unreadable(error) from error

    def _check_rows(self) -> TopicSchema | None:
        """Raise ValueError unless the writer's values are rows."""
        writer = self._writer()
        if writer is not None and writer.type != SchemaType.ARROW.name:
            raise ValueError(f"it was written as {writer.type}, and not as {SchemaType.ARROW.name}")
        return writer

    def _value_or_error(self, data: bytes) -> Any:
        try:
            return self.decode(data)
        except PulsarException as error:
            return Unreadable(error)

    def prepare(self) -> None:
        """Ask the registry now, for values that are read later."""
        try:
            self._decode = self._schema.reading(self._writer())
        except (SchemaSerializationException, OperationNotSupported) as error:
            self._decode = _raising(error)
        except ValueError as error:
            self._decode = _raising(self._unreadable(error))

    def _unreadable(self, error: Exception) -> SchemaSerializationException:
        return SchemaSerializationException(
            f"{self._said()} cannot be read with {self._schema}: {type(error).__name__}: {error}"
        )

    def _writer(self) -> TopicSchema | None:
        if self._found is not None or not self._written:
            return self._found
        version = version_number(self._written)
        if version is None:
            raise ValueError(f"the version {self._written!r:.40} is none that a registry gives")
        try:
            self._found = self._find(self._topic, version)
        except SchemaNotFound as error:
            raise SchemaSerializationException(f"{self._said()} cannot be read: {error.text}") from error
        return self._found

    def _said(self) -> str:
        version = version_number(self._written)
        return (
            f"a value of {self._topic} {'without a schema' if version is None else f'of version {version}'}"
        )


def _answer(found: TopicSchema | PulsarException | None, _topic: str, _version: int) -> TopicSchema:
    """Answer as the registry did where a message was pickled."""
    if isinstance(found, PulsarException):
        raise found.again()
    assert found is not None
    return found


def _raising(error: PulsarException) -> Callable[[bytes], Any]:
    def decode(_: bytes) -> Any:
        raise error.again()

    return decode
