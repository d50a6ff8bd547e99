"""The latest value of each key of a topic, kept up to date in memory."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.options.checks import check_text, check_type
from pulsar_ray.client.options.schema import Schema
from pulsar_ray.client.received.batch_collector import ANY_BYTES, BatchCollector
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.errors import (
    AlreadyClosed,
    NotAllowedError,
    PulsarException,
    SchemaSerializationException,
    TopicNotFound,
)
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName

logger = logging.getLogger(__name__)

MESSAGES_AT_ONCE = 10_000
LOOK_INTERVAL_S = 1.0
Listener = Callable[[str, Any], Any]


class Decoder(Protocol):
    """Reads stored values: a schema, or one by the writer's version."""

    def decode(self, data: bytes) -> Any: ...


class _OfKey:
    """Decodes values that are made of their key as well."""

    def __init__(self, reading: Any, key: str) -> None:
        self._reading = reading
        self._key = key

    def decode(self, data: bytes) -> Any:
        return self._reading.decode_pair(data, self._key, is_encoded=True)


Stored = tuple[bytes, Decoder]
"""A value as it is stored, and how it is read."""


class _Registered:
    """A listener, and the newest updates that it has not heard.

    The view's lock guards them. While it is told of the values of now, in the thread that registers it, later
    updates wait here: one for each key, so that they take no more room than the view itself.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.unheard: dict[str, Stored] = {}
        self.is_behind = True

    def updated(self, key: str, stored: Stored) -> bool:
        """Whether to tell it of an update now, and not behind others."""
        if self.is_behind:
            self.unheard.pop(key, None)
            self.unheard[key] = stored
        return not self.is_behind


class TableView:
    """A map from keys to values that follows a topic. Thread-safe. Made by `Client.create_table_view`.

    Once it follows no more, as its topic was deleted or made anew, its methods raise what ended it. Behind
    `close` it has the values of then.

    Messages without a key count for nothing; an empty payload or a tombstone removes its key. It reads by a
    reader of its own, leaves no subscription behind, and holds all values in memory.
    """

    def __init__(
        self,
        topic: str,
        subscription_name: str | None,
        schema: Schema,
        reader: Reader,
        consumer: Consumer,
        core: ConsumerCore,
    ) -> None:
        self._topic = topic
        self._subscription_name = subscription_name
        self._schema = schema
        self._reader = reader
        self._consumer = consumer
        self._core = core
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._readings: dict[str, Decoder] = {}
        """How values are read that were written with a version of the topic's schema."""
        self._listeners: list[_Registered] = []
        self._kept: list[TableView] = []
        """Of the thread that follows: the view itself, once it has listeners."""

    def load(self) -> None:
        """Read all messages stored by now, then follow in a thread.

        Raises what ends a reader. A block that cannot be read is passed by here, too, and logged: else nobody
        could look at the others.
        """
        stored = {last.topic_name: last for last in self._consumer.get_last_message_ids() if last.topic_name}
        while stored and self._consumer.has_message_available():
            view = self._take_readable()
            if view is None:
                continue
            for block, rows in view.parts:
                row = rows[-1]
                entry_id = block.first_entry_id + (0 if block.is_batch else row)
                at = MessageId(block.partition, block.ledger_id, entry_id, row if block.is_batch else -1)
                last = stored.get(block.topic_name)
                if last is not None and _place(at) >= _place(last):
                    del stored[block.topic_name]
        following = (weakref.ref(self), self._kept)
        threading.Thread(target=_follow, args=following, name="pulsar-ray-table", daemon=True).start()

    def _take(self) -> MessageBatchView:
        taken = BatchCollector(MESSAGES_AT_ONCE, ANY_BYTES, fills=False)
        self._core.take_into(taken, time.monotonic() + LOOK_INTERVAL_S)
        view = MessageBatchView(taken.parts)
        if taken.parts:
            self._apply(view)
            self._consumer.acknowledge(view)
        return view

    def look(self) -> bool:
        """Wait for a while for what comes, and take it; False once nothing more will."""
        try:
            self._take_readable()
        except PulsarException as error:
            if not self._core.has_failed:
                logger.error("table view of %s goes on: %s", self._topic, error)
        ended = self._end_of_following()
        if ended is not None and not self._reader.ending.is_over:
            logger.error("table view of %s has ended: %s", self._topic, ended)
        return ended is None

    def _take_readable(self) -> MessageBatchView | None:
        """The next messages; None where something could not be read."""
        try:
            return self._take()
        except PulsarException as error:
            if error.message_id is None:
                raise
            logger.error("table view of %s goes on behind what it cannot read: %s", self._topic, error)
            return None

    def _end_of_following(self) -> PulsarException | None:
        """Why its values are those of now no more, None while they are."""
        if self._core.error is None and any(
            partition.session.was_replaced for partition in self._core.partitions.all
        ):
            return TopicNotFound(
                f"{self._topic} was deleted and made anew, and this table view has values of the former one: "
                "create another"
            )
        return self._core.error

    def _check(self) -> None:
        """Raise what has ended the following, but for `close`."""
        ended = self._end_of_following()
        if ended is not None and not self._reader.ending.is_over:
            raise ended.again()

    def _apply(self, view: MessageBatchView) -> None:
        is_typed = self._core.readings is not None
        for message in view:
            key = message.partition_key()
            if not key:
                continue
            data = message.data()
            reading: Decoder = message.block.schema if is_typed else self._schema
            if is_typed and message.block.schema.takes_keys:
                reading = _OfKey(message.block.schema, key)
            with self._lock:
                if data:
                    self._values[key] = data
                    if is_typed:
                        self._readings[key] = reading
                else:
                    self._values.pop(key, None)
                    self._readings.pop(key, None)
                told = [each.listener for each in self._listeners if each.updated(key, (data, reading))]
            for listener in told:
                self._call(listener, key, (data, reading))

    def _call(self, listener: Listener, key: str, stored: Stored) -> None:
        if self._reader.ending.is_over:
            return
        try:
            listener(key, _value(stored))
        except Exception:
            logger.exception("a table view's listener raised")

    def get(self, key: str) -> Any:
        """The latest value of a key, decoded by the schema; None if it has none."""
        check_text("key", key)
        self._check()
        with self._lock:
            data = self._values.get(key)
            reading = self._readings.get(key, self._schema)
        return None if data is None else reading.decode(data)

    def _items(self) -> list[tuple[str, Stored]]:
        """All values, with how they are read. The lock is held."""
        readings, own = self._readings, self._schema
        return [(key, (data, readings.get(key, own))) for key, data in self._values.items()]

    def for_each(self, callback: Listener) -> None:
        """Call `callback(key, value)` for every key that has a value now.

        Raises SchemaSerializationException for the first value that cannot be read, after all others.
        """
        _check_callback(callback)
        self._check()
        with self._lock:
            items = self._items()
        unreadable = _each_readable(items, callback)
        if unreadable is not None:
            raise unreadable

    def for_each_and_listen(self, callback: Listener) -> None:
        """Call `callback(key, value)` for every key now, then for every update.

        Updates come in a thread of the view's; what a key was last updated to in between comes before this
        returns. A removed key comes with an empty value. Exceptions of the callback at an update are logged,
        and so are values that cannot be read: `get` raises them.
        """
        _check_callback(callback)
        self._check()
        with self._lock:
            items = self._items()
            registered = _Registered(callback)
            self._listeners.append(registered)
            self._kept[:] = [self]
        try:
            unreadable = _each_readable(items, callback)
        except BaseException:
            with self._lock:
                self._listeners.remove(registered)
                if not self._listeners:
                    self._kept.clear()
            raise
        if unreadable is not None:
            logger.error("a listener of the table view of %s misses a value: %s", self._topic, unreadable)
        while True:
            with self._lock:
                unheard, registered.unheard = registered.unheard, {}
                if not unheard:
                    registered.is_behind = False
                    return
            for key, stored in unheard.items():
                self._call(callback, key, stored)

    def close(self) -> None:
        """Stop following. A second call raises AlreadyClosed, one after `Client.shutdown` does not."""
        self._reader.close()

    def shut_down(self) -> None:
        """End at once."""
        self._reader.shut_down()

    @property
    def ending(self) -> Ending:
        """Whether and how it was closed; not part of the official client."""
        return self._reader.ending

    def __del__(self) -> None:
        reader = self.__dict__.get("_reader")
        if reader is not None:
            reader.ending.forgotten(self)

    def __enter__(self) -> TableView:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AlreadyClosed):
            self.close()

    def __len__(self) -> int:
        self._check()
        return len(self._values)

    def __str__(self) -> str:
        subscription = "" if self._subscription_name is None else f", subscription={self._subscription_name}"
        return f"TableView(topic={self._topic}{subscription})"


def _value(stored: Stored) -> Any:
    data, reading = stored
    try:
        return reading.decode(data)
    except SchemaSerializationException:
        if data:
            raise
        # A key that was removed is told of with an empty value, and most schemas have none.
        return None


def _each_readable(
    items: list[tuple[str, Stored]], callback: Listener
) -> SchemaSerializationException | None:
    """Call `callback` for all values that can be read.

    Returns the first error of the others.
    """
    unreadable: SchemaSerializationException | None = None
    for key, stored in items:
        try:
            value = _value(stored)
        except SchemaSerializationException as error:
            unreadable = unreadable or error
        else:
            callback(key, value)
    return unreadable


def _follow(following: weakref.ref[TableView], kept: list[TableView]) -> None:
    """Keep a view up to date while its program or listeners keep it."""
    while (view := following()) is not None and view.look():
        # Between two looks only `kept` is left, and what the program has.
        del view
    kept.clear()


def refuse_view_of_unstored(topic: str) -> None:
    """Raise NotAllowedError for a table view of a topic that stores nothing."""
    if not TopicName.parse(topic).is_persistent:
        raise NotAllowedError(
            f"a table view of {topic}: it is non-persistent and keeps no values; use a persistent:// topic"
        )


def _check_callback(callback: Any) -> None:
    check_type("callback", callback, Callable, "a function (key, value)")  # type: ignore[arg-type]


def _place(message_id: MessageId) -> tuple[int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
