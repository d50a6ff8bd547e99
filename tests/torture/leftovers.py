"""What the subscriptions of a stored directory give to consumers that open now and acknowledge nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from pulsar_ray import Client, Consumer, ConsumerType, InitialPosition
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.transport.cluster import Cluster
from tests.faults.history.operations import digest_of, source_of
from tests.faults.journal import Id, id_of

QUIET_S = 0.6
LOOK_MS = 10
PATIENCE_S = 10.0


class Subscriber(NamedTuple):
    """A subscription of one partition."""

    partition: str
    subscription: str
    kind: ConsumerType


Given = Mapping[Id, tuple[str, int, int]]
"""Producer, number and digest by place."""


def partition_index(partition: str) -> int:
    """The index that message ids of the partition have."""
    _, found, index = partition.rpartition("-partition-")
    return int(index) if found else -1


def given_to(
    cluster: StubCluster,
    subscribers: Sequence[Subscriber],
    is_complete: Callable[[Subscriber, Given], bool] = lambda _subscriber, _given: True,
) -> dict[Subscriber, Given | None]:
    """Everything that each gives, up to a time of silence; None for one that is refused.

    A silence before all are complete may be a busy machine's: it is waited through, with patience, which each
    message renews.
    """
    client = Client._on(cast("Cluster", cluster), transport="socket", operation_timeout_seconds=5)
    found: dict[Subscriber, Given | None] = {}
    consumers: dict[Subscriber, Consumer] = {}
    try:
        for subscriber in subscribers:
            found[subscriber] = None
            with suppress(PulsarException):
                consumers[subscriber] = client.subscribe(
                    *subscriber, initial_position=InitialPosition.Earliest, max_pending_chunked_message=100
                )
        found |= _drained(consumers, is_complete)
    finally:
        with suppress(PulsarException):
            client.shutdown()
    return found


def _drained(
    consumers: Mapping[Subscriber, Consumer], is_complete: Callable[[Subscriber, Given], bool]
) -> dict[Subscriber, Given | None]:
    given: dict[Subscriber, dict[Id, tuple[str, int, int]]] = {each: {} for each in consumers}
    refused: set[Subscriber] = set()
    news_s = time.monotonic()

    def is_over() -> bool:
        silent_s = time.monotonic() - news_s
        waited_for = consumers.keys() - refused
        is_all = all(is_complete(each, given[each]) for each in waited_for)
        return silent_s >= (QUIET_S if is_all else PATIENCE_S)

    while not is_over():
        for subscriber in consumers.keys() - refused:
            try:
                # All that it has: with a look at all others for each, a long backlog would take minutes.
                while True:
                    message = consumers[subscriber].receive(LOOK_MS)
                    news_s = time.monotonic()
                    _, *place = id_of(message.message_id())
                    data = message.data()
                    at = (partition_index(subscriber.partition), *place)
                    given[subscriber][cast("Id", at)] = (*source_of(data), digest_of(data))
            except Timeout:
                continue
            except PulsarException:
                refused.add(subscriber)
    # What came before the refusal counts all the same: none of it may be wrong.
    return {each: None if each in refused and not given[each] else given[each] for each in consumers}
