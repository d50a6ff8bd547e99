"""The control calls of a partition: subscriptions, positions, leases and ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from pulsar_ray.broker.partition.attendance import Attendance
from pulsar_ray.broker.partition.backlog.backlog_clearing import BacklogClearing
from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.message_pages import Record, read_page
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.own_messages import OwnMessages
from pulsar_ray.broker.partition.publishing.publish_gate import PublishThrottle
from pulsar_ray.broker.partition.publishing.topic_end import TopicEnd
from pulsar_ray.broker.partition.range_measure import RangeLimits, measure_range
from pulsar_ray.broker.partition.range_plan import cut_range, segments_before
from pulsar_ray.broker.partition.topic_compaction import TopicCompaction, compacted_segments
from pulsar_ray.broker.partition.topic_offload import TopicOffload
from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.blocks.chunk_limits import LOOK_BACK_SEGMENTS
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError, SubscriptionNotFound
from pulsar_ray.managed_ledger.compaction.stored_blocks import first_since
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.managed_ledger.log.manifest_changes import mark_delete_before
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.registrations import (
    changed_properties,
    check_new_name,
    check_subscription_properties,
    kept_bytes,
)
from pulsar_ray.model.topic_name import TopicName, is_system_topic
from pulsar_ray.session.control_calls import PARTITION_CALLS, check_call

MOST_CREATORS = 256
"""Of the subscriptions that were registered last."""
MOST_LEASES = 10_000
"""Of a partition, not expired; a bulk read takes one of each."""


class PartitionCalls:
    """Answers calls on the owner loop.

    Every call may come twice, for its answer may be lost.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        disk: DiskThread,
        clock: Clock,
        attendance: Attendance,
        own_messages: OwnMessages,
        producers: ConnectedProducers,
        clearing: BacklogClearing,
        end: TopicEnd,
        compaction: TopicCompaction,
        offload: TopicOffload,
        throttle: PublishThrottle,
        waiting: Callable[[], str],
    ) -> None:
        self._ledger = ledger
        self._attendance = attendance
        self._own_messages = own_messages
        self._producers = producers
        self._clearing = clearing
        self._end = end
        self._compaction = compaction
        self._offload = offload
        self._throttle = throttle
        self._waiting = waiting
        self._writer = writer
        self._disk = disk
        self._clock = clock
        self._changing_properties = asyncio.Lock()
        self._creators: dict[int, str] = {}
        """The client ids of those that have registered subscriptions since this partition started."""

    async def call(self, name: str, arguments: dict[str, Any], client_id: str = "") -> Any:
        """Answer a call by its name. Raises InvalidConfiguration for one that there is not.

        `client_id` is that of the session; "" for an administrator's call over the actor handle.
        """
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "register_subscription": partial(self.register_subscription, client_id),
            "check_new_subscription": self.check_new_subscription,
            "set_subscription_properties": self.set_subscription_properties,
            "remove_subscription": self.remove_subscription,
            "hold_for_seek": self.hold_for_seek,
            "seek_position": self.seek_position,
            "last_message": self.last_message,
            "why_receipts_wait": self.why_receipts_wait,
            "check_position": self.check_position,
            "grant_lease": self.grant_lease,
            "release_lease": self.release_lease,
            "plan_range": self.plan_range,
            "plan_table": self.plan_table,
            "measure_range": self.measure_range,
            "append_message": self.append_message,
            "read_messages": self.read_messages,
            "forget_producers": self.forget_producers,
            "producer_sequence_ids": self.producer_sequence_ids,
            "end_messages": self.end_messages,
            "clear_backlog": self._clearing.clear,
            "truncate": self._truncate,
            "compact": self._compaction.compact,
            "compaction_status": self._compaction.status,
            "offload": self._offload.offload,
            "offload_status": self._offload.status,
            "fetch_back": self._offload.fetch_back,
            "slow_down": self._slow_down,
            "terminate": self._end.terminate,
        }
        check_call(PARTITION_CALLS, "partition", name, arguments)
        return await methods[name](**arguments)

    async def _slow_down(self, bytes_per_s: int, for_ms: int) -> None:
        """Take less from publishers for a while, however much their policies allow."""
        self._throttle.slow_down(bytes_per_s, for_ms)

    async def _truncate(self) -> None:
        """Delete all that is stored by now, what was compacted included."""
        await self._clearing.truncate()
        await self._compaction.drop()

    async def register_subscription(
        self,
        client_id: str,
        name: str,
        durable: bool,
        initial: str | Sequence[int],
        properties: dict[str, str],
        create: bool,
    ) -> dict[str, Any]:
        """Register a subscription durably, and return its number and hold.

        One that exists is returned as it is. `initial` is "earliest", "latest" or the [ledger id, entry id]
        of its first message. The answer says whether this client has created it, now or when it asked before
        and lost the answer. Raises SubscriptionNotFound unless `create`, NotAllowedError if the topic may
        have no more subscriptions, or InvalidConfiguration for the name of a new one.
        """
        existing = self._ledger.changes.find_subscription(name, durable)
        if existing is None:
            if not create:
                raise SubscriptionNotFound(
                    f"subscription {name!r} does not exist on {self._ledger.identity.topic}",
                    str(self._ledger.directory),
                )
            self._attendance.check_new_subscription(name)
            check_new_name("subscription", name)
            check_subscription_properties(properties)
            self._attendance.check_kept(name, properties, self._ledger.changes.kept_bytes(name))
            start: str | Position
            if not isinstance(initial, str):
                await self.check_position(initial)
                start = mark_delete_before(Position(*initial))
            else:
                start = initial
            change = self._ledger.changes.register(name, durable, start, properties)
            # Before it is durable: whoever asks meanwhile joins this registration.
            self._note_creator(change.result.number, client_id)
            await self._writer.confirmed(change)
            existing = self._ledger.changes.find_subscription(name, durable)
            assert existing is not None
        return {
            "number": existing.number,
            "hold": list(existing.hold),
            "expired": list(existing.expired),
            "directory": str(self._ledger.directory),
            "properties": existing.properties,
            "epoch": self._ledger.epoch,
            "created": client_id != "" and self._creators.get(existing.number) == client_id,
        }

    def _note_creator(self, number: int, client_id: str) -> None:
        self._creators.setdefault(number, client_id)
        if len(self._creators) > MOST_CREATORS:
            del self._creators[next(iter(self._creators))]

    async def check_new_subscription(self, name: str) -> None:
        """Raise NotAllowedError if the subscription exists, or the topic may have no more of them."""
        topic = self._ledger.identity.topic
        if self._ledger.changes.find_subscription(name, True) is not None:
            raise NotAllowedError(
                f"Subscription {name!r} already exists for topic {topic}: take another name"
            )
        self._attendance.check_new_subscription(name)

    async def set_subscription_properties(
        self, name: str, properties: dict[str, str], replace: bool
    ) -> dict[str, str]:
        """Change the properties of a durable subscription durably; returns them.

        See `changed_properties`. Its dispatcher has to be told to ask for them.
        """
        async with self._changing_properties:
            known = self._ledger.changes.find_subscription(name, True)
            if known is None:
                raise SubscriptionNotFound(
                    f"subscription {name!r} does not exist on {self._ledger.identity.topic}"
                )
            changed = changed_properties(known.properties, properties, replace=replace)
            check_subscription_properties(changed)
            if kept_bytes(name, changed) > kept_bytes(name, known.properties):
                self._attendance.check_kept(name, changed, self._ledger.changes.kept_bytes(name))
            if changed != known.properties:
                await self._writer.confirmed(self._ledger.changes.set_properties(known.number, changed))
            return changed

    async def remove_subscription(self, number: int) -> None:
        """Forget a subscription and its hold, durably."""
        if self._ledger.changes.has_subscription(number):
            await self._writer.confirmed(self._ledger.changes.remove_subscription(number))

    async def hold_for_seek(self, number: int, target: str | int | list[int], inclusive: bool) -> list[int]:
        """Move the hold to where a seek goes, durably.

        Returns the mark-delete position to start from, clamped to stored entries. `target` is "earliest",
        "latest", a publish time in ms, or [ledger id, entry id].
        """
        mark = Position(*await self.seek_position(target, inclusive))
        return list(await self._writer.confirmed(self._ledger.changes.seek(number, mark)))

    async def seek_position(self, target: str | int | list[int], inclusive: bool) -> list[int]:
        """Return the mark-delete position that a seek goes to; changes nothing."""
        ledger = self._ledger
        if target == "latest":
            last = ledger.readable_position
            return list(mark_delete_before(last) if inclusive else last)
        if target == "earliest":
            return list(ledger.changes.clamp(EARLIEST))
        if isinstance(target, int):
            if (kept := await self._kept_since(target)) is not None:
                return list(mark_delete_before(kept))
            search = ledger.begin_position_at_time(target)
            # Not on the disk thread: what is only in the object store may take a while, and commits go on.
            found = await asyncio.get_running_loop().run_in_executor(None, search.run)
            return list(mark_delete_before(found))
        assert not isinstance(target, str)
        position = Position(target[0], target[1])
        return list(ledger.changes.clamp(mark_delete_before(position) if inclusive else position))

    async def _kept_since(self, time_ms: int) -> Position | None:
        """The first entry published since then that compaction has kept of ledgers which are trimmed."""
        first, compacted = self._ledger.first_position, self._ledger.changes.compacted
        if compacted is None or compacted.first is None or compacted.first >= first:
            return None
        segments = compacted_segments(self._ledger.directory, compacted)
        kept = await asyncio.get_running_loop().run_in_executor(None, first_since, segments, time_ms)
        return kept if kept is not None and kept < first else None

    async def last_message(self) -> dict[str, Any]:
        """Return the `position` of the newest readable entry, and of the `first` one left.

        [-1, -1] stands for an empty log, and `first` lies behind `position` if no entry is left. A batch also
        has its number of messages.
        """
        return {**self._ledger.last_message(), "first": list(self._ledger.first_position)}

    async def why_receipts_wait(self) -> str:
        """Return why receipts wait for the object store; "" if they do not.

        With `sync` consumers are not shown anything before its receipt.
        """
        return self._waiting()

    async def check_position(self, position: Sequence[int]) -> None:
        """Raise InvalidConfiguration for a position of another topic; it need not exist."""
        ledger_id, entry_id = position
        identity = self._ledger.identity
        if ledger_id >> LEDGER_COUNTER_BITS != identity.number:
            raise InvalidConfiguration(
                f"the message id {ledger_id}:{entry_id} is not one of {identity.topic}: "
                "give an id of this topic"
            )

    async def grant_lease(self, first: list[int], last: list[int], expires_ms: int) -> dict[str, Any]:
        """Grant a hold with an expiry, for readers without a subscription; returns the segments too.

        Raises NotAllowedError if there are too many.
        """
        self._check_room_for_lease()
        change = self._ledger.changes.grant_lease(Position(*first), Position(*last), expires_ms)
        lease_id = await self._writer.durable(change)
        return {"lease_id": lease_id, **self.describe_log()}

    async def plan_range(self, start: Any, end: Any, slice_bytes: int, lease_ms: int) -> dict[str, Any]:
        """Return the files that hold a range, under a lease.

        `groups` are slices for one reader each, `starts` the positions at which these begin, `log` the
        segments before the last one of them, in which messages that end in the range may begin.
        `end` is exclusive; both bounds as `seek_position` takes them, or {"subscription": name} for the entry
        behind that subscription's mark-delete position. `trimmed` is the last entry that is gone for good.
        The partition's `number` tells it from others that had or will have its name.
        """
        self._check_room_for_lease()
        first, stop = await self._bound(start), await self._bound(end)
        last = self._ledger.readable_position
        stop = min(stop, last.next())
        groups = cut_range(self._ledger.segments(), self._ledger.index_points(), first, stop, slice_bytes)
        if first >= stop:
            groups = []
        lease = self._ledger.changes.grant_lease(first, last, self._clock.now_ms() + lease_ms)
        lease_id = await self._writer.durable(lease)
        return {
            "lease_id": lease_id,
            "first": list(first),
            "end": list(stop),
            "groups": [group.slices for group in groups],
            "starts": [list(group.first) for group in groups],
            "log": segments_before(self._ledger.segments(), groups, LOOK_BACK_SEGMENTS),
            "trimmed": list(self._ledger.trimmed_position),
            "number": self._ledger.identity.number,
        }

    async def plan_table(self, lease_ms: int) -> dict[str, Any]:
        """Return the files that have the latest message of each key, under a lease.

        See TableSource for the rest. The lease is on all there ever was, which keeps what was compacted too.
        """
        self._check_room_for_lease()
        last = self._ledger.readable_position
        lease = self._ledger.changes.grant_lease(EARLIEST, last, self._clock.now_ms() + lease_ms)
        lease_id = await self._writer.durable(lease)
        return {
            "lease_id": lease_id,
            "first": list(EARLIEST),
            "end": list(last),
            **self._compaction.sources(),
        }

    async def measure_range(
        self,
        first: list[int],
        batch_index: int,
        end: list[int],
        messages: int,
        stored_bytes: int,
        takes_one: bool,
    ) -> dict[str, Any]:
        """Return how far at most so many messages and stored bytes reach; see MeasuredRange."""
        work = partial(
            measure_range,
            self._ledger.segments(),
            self._ledger.index_points(),
            Position(*first),
            batch_index,
            min(Position(*end), self._ledger.readable_position.next()),
            RangeLimits(messages, stored_bytes, takes_one),
        )
        measured = await asyncio.get_running_loop().run_in_executor(None, work)
        return {**measured._asdict(), "end": list(measured.end)}

    async def _bound(self, bound: Any) -> Position:
        if isinstance(bound, dict):
            known = self._ledger.changes.find_subscription(bound["subscription"], True)
            if known is None:
                raise SubscriptionNotFound(
                    f"subscription {bound['subscription']!r} does not exist on {self._ledger.identity.topic}"
                )
            return known.hold.next()
        if bound == "latest":
            return self._ledger.readable_position.next()
        return Position(*await self.seek_position(bound, inclusive=True)).next()

    async def append_message(self, key: str, value: str) -> list[int]:
        """Append a message of the broker itself, durably; returns its position.

        Only system topics take one. Repeated, the message stands there twice.
        """
        topic = self._ledger.identity.topic
        if not is_system_topic(TopicName.parse(topic)):
            raise NotAllowedError(f"{topic} is no system topic: publish to it with a producer")
        return list(await self._own_messages.append(key, value))

    async def read_messages(self, behind: list[int]) -> list[Record]:
        """Read the next messages behind a position; [] if there are no more."""
        segments = self._ledger.segments()
        work = partial(read_page, segments, self._ledger.index_points(), Position(*behind))
        return await asyncio.get_running_loop().run_in_executor(None, work)

    async def forget_producers(self, prefix: str) -> list[str]:
        """Forget, durably, the sequence ids of producers whose names begin so; returns the names."""
        forgotten: list[str] = await self._writer.confirmed(self._ledger.changes.forget_producers(prefix))
        return forgotten

    async def producer_sequence_ids(self, prefix: str) -> dict[str, int]:
        """Return the highest durable sequence id of each remembered producer whose name begins so.

        Their messages are as durable as receipts say by then: who is told does not send them again.
        """
        ids = {
            known.name: known.durable_id for known in self._ledger.sequences if known.name.startswith(prefix)
        }
        await self._writer.confirmed(None)
        return ids

    async def end_messages(self, sending: Sequence[Sequence[int]], idle_ms: int) -> dict[str, Any]:
        """Return the incarnations that store nothing more behind an entry_seq of a message in chunks.

        `sending` are pairs of both, and `last` is the end of the log, behind all that they have stored.
        Producers that have been away for `idle_ms` have to begin anew.
        """
        left = self._producers.take_leave({pair[0]: pair[1] for pair in sending}, idle_ms)
        # The durable end: a chunk behind the readable one may be what the others wait for.
        return {"left": left, "last": list(self._ledger.last_position)}

    async def release_lease(self, lease_id: int) -> None:
        """Give a lease back before it expires."""
        await self._writer.durable(self._ledger.changes.release_lease(lease_id))

    def _check_room_for_lease(self) -> None:
        if len(self._ledger.changes.leases()) >= MOST_LEASES:
            raise NotAllowedError(
                f"{self._ledger.identity.topic} has {MOST_LEASES} leases of bulk reads that have not ended: "
                "release those that are done, or wait until they expire"
            )

    def describe_log(self) -> dict[str, Any]:
        """Describe where the readable log lies: first and last position, and the segments."""
        ledger = self._ledger
        return {
            "first": list(ledger.first_position),
            "last": list(ledger.readable_position),
            "segments": [
                [s.ledger_id, s.segment_index, str(s.path), s.first_entry_id, s.end_offset, s.last_entry_id]
                for s in ledger.segments()
            ],
        }
