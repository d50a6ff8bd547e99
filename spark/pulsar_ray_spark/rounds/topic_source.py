"""Topics at the broker: partitions, ranges, and the durable subscription that keeps them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from pulsar_ray.admin.admin import Admin
from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.data.planning.broker_planner import target_of
from pulsar_ray.data.planning.plan import (
    Bound,
    LostRange,
    ReadRange,
    SegmentSlice,
    Topics,
    beginning_of,
    lost_of,
    segments_before,
)
from pulsar_ray.errors import (
    DataLost,
    NotAllowedError,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
)
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import PartitionRoute

_LEASE_MS = 3_600_000
_WHOLE = 1 << 40
_log = logging.getLogger(__name__)


class PlannedPartition(NamedTuple):
    """A range of a partition.

    Pieces of about a file's size begin at `starts`. `trimmed` is the last entry that is gone for good, and
    `number` the partition's, which no other of its name has.
    """

    topic: str
    partition: int
    first: Position
    end: Position
    starts: Sequence[Position]
    trimmed: Position = EARLIEST
    number: int = 0


class LeasedRange(NamedTuple):
    """A range that stays for now, and its trimmed part, where that is an error."""

    read_range: ReadRange
    lost: LostRange | None


class TopicSource:
    """Ranges of some topics, kept by a durable subscription until they are acknowledged."""

    def __init__(
        self, admin: Admin, topics: Topics, subscription: str, *, fail_on_data_loss: bool = True
    ) -> None:
        self._admin = admin
        self._fail_on_data_loss = fail_on_data_loss
        self._calls = TopicCalls(admin)
        self._topics = topics
        self._subscription = subscription
        self._registered: set[str] = set()
        self._gone: set[str] = set()

    def partitions(self) -> list[str]:
        """Names of the partitions that there are now; none of them is woken. Raises TopicNotFound."""
        return [route.topic for topic in self._names() for route in self._calls.all_routes(topic)]

    def ends(self, known: Iterable[str]) -> dict[str, Position]:
        """The position behind the last stored message of each partition, which is not woken.

        Raises DataLost for a topic that was deleted, and for a partition of `known` where a topic of its name
        was made anew without it, unless messages may be lost.
        """
        ends, there = {}, set()
        for topic in self._names():
            try:
                for route in self._calls.all_routes(topic):
                    last = self._calls.last_message(route)
                    ends[route.topic] = Position(*last["position"]).next()
            except TopicNotFound:
                self._miss(topic)
            else:
                there.add(TopicName.parse(topic).partitioned_full)
        for name in known:
            if name not in ends and TopicName.parse(name).partitioned_full in there:
                self._miss(name)
        return ends

    def _miss(self, topic: str) -> None:
        """Pass over a deleted topic if its messages may be lost; else raise DataLost."""
        if self._fail_on_data_loss:
            raise self.gone(topic) from None
        if topic not in self._gone:
            self._gone.add(topic)
            _log.warning("%s was deleted: %r goes on without it", topic, self._subscription)

    def gone(self, topic: str) -> DataLost:
        """Return the error of a topic that was deleted since this was begun."""
        return DataLost(
            f"{topic} was deleted, with all that {self._subscription!r} had not read of it; give "
            "fail_on_data_loss=False to go on with the other topics, and with this one should it be made "
            "anew, or begin under another name without it"
        )

    def first_positions(self, start: Bound) -> dict[str, Position]:
        """The positions that a bound stands for now, of each partition; held from now on.

        They say which partition they are of, also where nothing is stored: another of its name has others.
        """
        positions = {}
        for name in self.partitions():
            planned = self._planned(self.held(name), start, "latest", _WHOLE)
            positions[name] = max(planned.first, beginning_of(planned.number))
        return positions

    def plan(
        self, ends: Mapping[str, Position], positions: Mapping[str, Position], file_bytes: int
    ) -> Iterator[PlannedPartition]:
        """The ranges from `positions` to `ends` of the partitions that have any.

        A partition without a position is new, and begins at its start. Raises DataLost.
        """
        for name, end in ends.items():
            first = positions.get(name, EARLIEST)
            if end > first and end.ledger_id >= 0:
                try:
                    planned = self._planned(self.held(name), first, end, file_bytes)
                except TopicNotFound:
                    self._miss(name)
                    continue
                if self._fail_on_data_loss:
                    check_kept(planned, first, self._subscription)
                yield planned

    @contextmanager
    def leased(self, topic: str, partition: int, first: Position, end: Position) -> Iterator[LeasedRange]:
        """The segments that hold a range, and its part that is gone.

        They stay until the context is left.
        """
        route: PartitionRoute | None = None
        try:
            route = self._started(topic)
        except TopicNotFound:
            self._miss(topic)
        if route is None:
            yield LeasedRange(ReadRange("", topic, partition, (), first, end), None)
            return
        answer = self._ask(route, [*first], [*end], _WHOLE)
        segments = tuple(SegmentSlice(*piece) for group in answer["groups"] for piece in group)
        log = [SegmentSlice(*piece) for piece in answer["log"]]
        before = segments_before(log, segments) if segments else ()
        node_id = answer.get("node_id", "")
        read_range = ReadRange(node_id, topic, partition, segments, first, end, before=before)
        lost = lost_of(topic, first, end, Position(*answer["trimmed"]), answer["number"])
        try:
            yield LeasedRange(read_range, lost if self._fail_on_data_loss else None)
        finally:
            self._release(route, answer)

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Give up all messages before these positions, durably, of the topics that are still there.

        One in chunks is where its last chunk is: the others stay for it.
        """
        for name, position in positions.items():
            if position.ledger_id >= 0:
                mark = [position.ledger_id, position.entry_id - 1]
                with suppress(TopicNotFound):
                    self._acknowledge_again(name, mark)

    def _acknowledge_again(self, name: str, mark: list[int]) -> None:
        try:
            self._acknowledge(name, mark)
        except SubscriptionNotFound:
            # The topic is another one by now, or the subscription was deleted: this brings it back.
            self._registered.discard(name)
            self._acknowledge(name, mark)

    def _acknowledge(self, name: str, mark: list[int]) -> None:
        self._calls.ask_dispatcher(
            self.held(name), self._subscription, "acknowledge_messages_through", position=mark
        )

    def wake_dispatcher(self, name: str) -> None:
        """Start the dispatcher of the subscription, unless it runs."""
        self._calls.wake_dispatcher(self.held(name), self._subscription)

    def held(self, name: str) -> PartitionRoute:
        """The route of a partition that is started, and has the subscription."""
        route = self._started(name)
        if name not in self._registered:
            self._calls.ask_partition(
                route,
                "register_subscription",
                name=self._subscription,
                durable=True,
                initial="earliest",
                properties={},
                create=True,
            )
            self._registered.add(name)
        return route

    def _names(self) -> Sequence[str]:
        if not isinstance(self._topics, re.Pattern):
            return self._topics
        pattern = TopicPattern(self._topics)
        known = self._admin.cluster.topics(pattern.namespace, self._calls.timeout_s)
        return [name for name, _ in known if pattern.matches(name)]

    def _started(self, name: str) -> PartitionRoute:
        """The route of a partition, started.

        Raises TopicNotFound, also where a topic of its name was made anew with other partitions.
        """
        try:
            route, *others = self._calls.routes(name)
        except NotAllowedError as error:
            raise TopicNotFound(error.text) from None
        if others or route.topic != name:
            raise TopicNotFound(f"{name} does not exist: the topic was made anew with other partitions")
        return route

    def _planned(
        self, route: PartitionRoute, start: Bound | Position, end: Bound | Position, file_bytes: int
    ) -> PlannedPartition:
        answer = self._ask(route, _target(start, route), _target(end, route), file_bytes)
        self._release(route, answer)
        starts = [Position(*start) for start in answer["starts"]]
        first, stop = Position(*answer["first"]), Position(*answer["end"])
        return PlannedPartition(
            route.topic, route.partition, first, stop, starts, Position(*answer["trimmed"]), answer["number"]
        )

    def _ask(self, route: PartitionRoute, start: Any, end: Any, slice_bytes: int) -> dict[str, Any]:
        answer: dict[str, Any] = self._calls.ask_partition(
            route, "plan_range", start=start, end=end, slice_bytes=slice_bytes, lease_ms=_LEASE_MS
        )
        return answer

    def _release(self, route: PartitionRoute, answer: Mapping[str, Any]) -> None:
        # A lease that cannot be given back ends by itself.
        with suppress(PulsarException):
            self._calls.ask_partition(route, "release_lease", lease_id=answer["lease_id"])


def _target(bound: Bound | Position, route: PartitionRoute) -> Any:
    if bound == EARLIEST:
        return "earliest"
    return [*bound] if isinstance(bound, Position) else target_of(bound, route.partition)


def check_kept(planned: PlannedPartition, asked: Position, subscription: str) -> None:
    """Raise DataLost if messages from the position on that comes next are gone."""
    lost = lost_of(planned.topic, asked, planned.end, planned.trimmed, planned.number)
    if lost is not None:
        trimmed = f" is trimmed: subscription {subscription!r} was moved or deleted, or messages expired"
        raise DataLost(
            f"{lost}{'' if lost.is_replaced else trimmed}; give fail_on_data_loss=False to go on behind them"
        )


def full_names(topics: Topics) -> tuple[str, ...]:
    """Topics as the identity of rounds keeps them."""
    if isinstance(topics, re.Pattern):
        return (f"pattern:{topics.pattern}",)
    return tuple(sorted(TopicName.parse(topic).full for topic in topics))
