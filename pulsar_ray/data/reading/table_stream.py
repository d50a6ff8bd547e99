"""A topic as Arrow tables that go on."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal

import pyarrow as pa

from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.options.checks import check_number
from pulsar_ray.data.planning.plan import AtMessages, AtTime, as_bound
from pulsar_ray.data.reading.block_schema import as_columns
from pulsar_ray.errors import AlreadyClosed, InvalidConfiguration, PulsarException, Timeout
from pulsar_ray.model.enums import ConsumerType, InitialPosition, SubscriptionMode
from pulsar_ray.model.message_id import MessageId

Start = Literal["earliest", "latest"] | MessageId | datetime | timedelta | AtTime


def batches(
    topic: str | list[str] | re.Pattern[str],
    subscription: str | None = None,
    *,
    start: Start = "earliest",
    batch_size: int = 10_000,
    fill_millis: int = 100,
    idle_millis: int | None = None,
    columns: list[str] | None = None,
    consumer_type: ConsumerType = ConsumerType.Exclusive,
    commits_itself: bool = True,
    client: Client | None = None,
    service_url: str = "auto",
) -> TableStream:
    """Iterate over a topic's messages, later ones too, as Arrow tables.

    With `subscription` each message comes at least once: asking for the next table acknowledges the one
    before, durably, or `commit` does if `commits_itself` is False. After a crash whatever was not
    acknowledged comes again, and with it the rest of its batch unless the broker keeps acknowledgments of
    parts (`acknowledgment_at_batch_index_level_enabled`). `start` counts for a new subscription, and can then
    be "earliest" or "latest" only. Without a subscription nothing is kept: the stream begins at `start` (a
    message id is inclusive) and goes on behind what it has given, as a Reader.

    A table has at most `batch_size` rows. One that is not full waits at most `fill_millis` for more. The
    iteration goes on for ever, or ends when nothing has come for `idle_millis`. `columns` are those of a
    received table, None for all. `client` is the client to work with (None: one for `service_url`, closed
    with the stream).

    Raises InvalidConfiguration for a wrong argument, and what `Client.subscribe` raises.
    """
    wanted = as_columns(columns)
    check_number("batch_size", batch_size, 1)
    check_number("fill_millis", fill_millis)
    if idle_millis is not None:
        check_number("idle_millis", idle_millis, 1)
    bound = as_bound(start, time.time_ns() // 1_000_000)
    target: MessageId | int | None = None
    if isinstance(bound, AtTime):
        target = bound.time_ms
    elif isinstance(bound, AtMessages) and len(bound.message_ids) == 1:
        target = bound.message_ids[0]
    elif bound not in ("earliest", "latest"):
        raise InvalidConfiguration(
            f"start={start!r} is no place to begin a stream at: give 'earliest', 'latest', a message id, a "
            "datetime with a time zone, a timedelta before now or AtTime(ms)"
        )
    if subscription is not None and target is not None:
        raise InvalidConfiguration(
            f"start={start!r} with subscription={subscription!r}: a subscription knows where it goes on; "
            "leave one of both out, or seek with a consumer before"
        )
    own = None if client is not None else Client(service_url)
    opened = client or own
    assert opened is not None
    try:
        consumer = opened.subscribe(
            topic,
            subscription or f"batches-{uuid.uuid4().hex}",
            consumer_type,
            initial_position=InitialPosition.Latest if bound == "latest" else InitialPosition.Earliest,
            subscription_mode=SubscriptionMode.NonDurable
            if subscription is None
            else SubscriptionMode.Durable,
            start_message_id_inclusive=True,
            ack_receipt_enabled=subscription is not None,
            # Rows of a batch that were acknowledged do not come again with the others.
            batch_index_ack_enabled=True,
        )
        if target is not None:
            consumer.seek(target)
    except BaseException:
        if own is not None:
            own.close()
        raise
    return TableStream(
        consumer,
        own,
        batch_size,
        fill_millis,
        idle_millis,
        wanted,
        # Without a subscription there is nothing to wait for: what is not acknowledged would pile up.
        commits_itself=commits_itself or subscription is None,
    )


class TableStream:
    """Arrow tables of a topic, made by `batches`.

    A context manager that closes at its end. For one thread at a time.
    """

    def __init__(
        self,
        consumer: Consumer,
        own_client: Client | None,
        batch_size: int,
        fill_millis: int,
        idle_millis: int | None,
        columns: tuple[str, ...],
        *,
        commits_itself: bool,
    ) -> None:
        self._consumer = consumer
        self._own_client = own_client
        self._batch_size = batch_size
        self._fill_s = fill_millis / 1000
        self._idle_millis = idle_millis
        self._columns = columns
        self._commits_itself = commits_itself
        self._taken: list[pa.Table] = []
        self._received: list[pa.Table] = []
        """The parts of the next table that are there.

        They stay if the wait for more is interrupted.
        """
        self._next_error: PulsarException | None = None
        """Raised next, behind the rows that came before it."""

    def __iter__(self) -> Iterator[pa.Table]:
        return self

    def __next__(self) -> pa.Table:
        """Return the next table, and acknowledge the one before unless only `commit` may."""
        if self._commits_itself:
            self.commit()
        error, self._next_error = self._next_error, None
        if error is not None:
            raise error
        if not self._received:
            try:
                self._received.append(self._consumer.receive_arrow(self._batch_size, self._idle_millis))
            except Timeout:
                raise StopIteration from None
        self._fill()
        parts, self._received = self._received, []
        self._taken += parts
        whole = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
        return whole.select(list(self._columns))

    def _fill(self) -> None:
        rows = sum(part.num_rows for part in self._received)
        deadline = time.monotonic() + self._fill_s
        while rows < self._batch_size and (left_s := deadline - time.monotonic()) > 0:
            try:
                part = self._consumer.receive_arrow(self._batch_size - rows, max(int(left_s * 1000), 1))
            except Timeout:
                return
            except PulsarException as error:
                self._next_error = error
                return
            rows += part.num_rows
            self._received.append(part)

    def commit(self) -> None:
        """Acknowledge all tables that were taken, durably; they do not come again."""
        while self._taken:
            self._consumer.acknowledge_arrow(self._taken[0])
            del self._taken[0]

    def close(self) -> None:
        """Stop. Tables that were not acknowledged come again to whoever reads next."""
        try:
            self._consumer.close()
        finally:
            if self._own_client is not None:
                self._own_client.close()

    def __enter__(self) -> TableStream:
        return self

    def __exit__(self, *_: Any) -> None:
        with suppress(AlreadyClosed):
            self.close()
