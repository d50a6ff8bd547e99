"""A consumer as its dispatcher sees it: its permits, and the rows it has."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from sortedcontainers import SortedDict

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS, ChunkLimits
from pulsar_ray.dispatch.blocks.counted_rows import CountedRows
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.key_shared.hash_regions import DEFAULT_KEY_SHARED, KeySharedSpec
from pulsar_ray.dispatch.key_shared.sticky_key import Slots
from pulsar_ray.model import row_sets
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.row_sets import RowSet

Key = tuple[int, int]
"""(ledger id, first entry id) of a block."""
Members = Mapping[Key, RowSet]


@dataclass(frozen=True)
class ConsumerSpec:
    """Identifies a consumer. `incarnation` is random, and kept over re-attachments.

    `batch_index_ack` is the consumer's switch; it works only together with the broker's. `joined` rises with
    each consumer that subscribes, also over restarts of the dispatcher. `is_multi_topic`: it is one part of a
    consumer of several topics. `key_shared` is its wish for a Key_Shared subscription, `chunk_limits` for
    messages that are not complete.
    """

    incarnation: int
    name: str
    consumer_type: ConsumerType
    priority_level: int = 0
    batch_index_ack: bool = False
    joined: int = 0
    is_multi_topic: bool = False
    key_shared: KeySharedSpec = DEFAULT_KEY_SHARED
    chunk_limits: ChunkLimits = DEFAULT_LIMITS


PATIENCE_MS = 1_000
"""Suspects keep everything else from a consumer for no longer."""


class Trial:
    """Keeps everything else from a consumer until its suspects are settled, or for `PATIENCE_MS`."""

    __slots__ = ("deliveries", "has_flowed", "is_over", "since_ms")

    def __init__(self) -> None:
        self.deliveries: dict[Delivery, None] = {}
        """Its suspects, the last ones last; without any there is no trial."""
        self.since_ms: int | None = None
        """Since when it has had them, or has been kept from everything else for them."""
        self.is_over = False
        """It has had its suspects for so long that it gets others, too."""
        self.has_flowed = False
        """Whether it was given messages that are not suspect since it had suspects last."""

    @property
    def group(self) -> SuspectGroup | None:
        """The group that is tried, of several the last."""
        return next(reversed(self.deliveries)).group if self.deliveries else None

    def go_on(self, group: SuspectGroup, now_ms: int) -> None:
        """Begin patience with the last suspects granted: a program may take them one by one."""
        self.is_over &= group is self.group
        self.since_ms = now_ms

    def remove(self, delivery: Delivery) -> None:
        """A delivery has no suspects any more."""
        group = self.group
        del self.deliveries[delivery]
        if not self.deliveries:
            self.since_ms = None
            self.is_over = self.has_flowed = False
        elif self.group is not group:
            # It got others only because it had had these for long.
            self.is_over = True

    def has_waited(self, now_ms: int) -> bool:
        """Whether the consumer has waited for long, counted from when this is first asked."""
        if self.since_ms is None:
            self.since_ms = now_ms
        return now_ms - self.since_ms >= PATIENCE_MS


class Consumer:
    """Permits, pending deliveries and their numbers.

    Credit, `granted` and `handed_over` (messages that have left the consumer's queue, to the application
    or dropped from it on demand) are absolute counts of messages since the consumer's incarnation began,
    so that a repeated or reordered report changes nothing: permits = credit - granted. A batch goes whole
    and may push permits below zero.
    """

    __slots__ = (
        "credit",
        "declined",
        "deliveries",
        "granted",
        "handed_over",
        "is_blocked",
        "nacked",
        "next_number",
        "received",
        "spec",
        "trial",
        "unacked",
        "unconfirmed",
        "window",
    )

    def __init__(self, spec: ConsumerSpec) -> None:
        self.spec = spec
        self.credit = 0
        self.granted = 0
        self.handed_over = 0
        self.nacked = (0, 0)
        """Failed messages that wait there for their delay, and when the first is due."""
        self.window = 0
        """Messages the consumer's queue can hold, by its credit."""
        self.declined = (-1, -1, -1)
        """Credit, granted messages and window when something did not fit.

        Nothing fits until one of them changes.
        """
        self.unacked = 0
        self.is_blocked = False
        """Too many unacknowledged messages; until half of them are acknowledged."""
        self.next_number = 1
        self.received = 0
        self.deliveries: dict[Delivery, None] = {}
        self.unconfirmed: deque[Delivery] = deque()
        """Those that it has not reported to have received."""
        self.trial = Trial()

    @property
    def permits(self) -> int:
        return self.credit - self.granted

    def set_credit(self, credit: int, received: int, handed_over: int) -> None:
        """Take a report; lower values than before are of a late one and change nothing.

        But credit is lower when the consumer's queue may hold less than before.
        """
        if handed_over >= self.handed_over:
            self.handed_over = handed_over
            self.window = max(credit - handed_over, 0)
        self.credit = max(self.credit, credit)
        if received > self.received:
            self.received = received
            unconfirmed = self.unconfirmed
            while unconfirmed and unconfirmed[0].number <= received:
                unconfirmed.popleft()

    def room(self, max_unacked: int, *, of_suspects: bool = False) -> int:
        """Return how many messages, or suspects, it may get now; 0 or less: none.

        `max_unacked` 0 means no limit.
        """
        trial = self.trial
        if trial.deliveries and not (trial.is_over or of_suspects):
            return 0
        permits = self.credit - self.granted
        if not max_unacked:
            return permits
        if self.is_blocked:
            if self.unacked > max_unacked // 2:
                return 0
            self.is_blocked = False
        left = max_unacked - self.unacked
        return permits if permits < left else left

    def resume_after(self, received: int) -> list[Delivery]:
        """Forget deliveries that arrived; return those to be sent again, in order.

        Rows that were acknowledged or taken back meanwhile are not sent again, and not charged either.
        """
        self.set_credit(self.credit, received, self.handed_over)
        if not self.unconfirmed:
            return []
        self.granted = self.unconfirmed[0].granted_before
        again = [delivery for delivery in self.unconfirmed if delivery.rows]
        for delivery in again:
            delivery.recharge(self.granted)
            self.granted += delivery.messages
        self.unconfirmed = deque(again)
        return again


class Shares(NamedTuple):
    """The rows of a block by their keys' consumer, for one version of the routes."""

    version: object
    rows: dict[int, RowSet]


class DispatchBlock:
    """A block that is not acknowledged completely, as far as it was read.

    `slots` are those of its rows' sticky keys, where the subscription needs them.
    """

    __slots__ = ("deliveries", "is_batch", "key", "ref", "shares", "slots", "suspects", "waiting")

    def __init__(self, ref: BlockRef, slots: Slots | None = None) -> None:
        self.ref = ref
        self.is_batch = ref.messages > 1 and ref.is_batch
        self.slots = slots
        self.shares: Shares | None = None
        """The consumers of its rows, as Key_Shared found them last."""
        self.key = (ref.ledger_id, ref.first_entry_id)
        self.deliveries: list[Delivery] = []
        self.waiting: list[CountedRows] = []
        self.suspects: list[CountedRows] = []


class Delivery:
    """Rows of a block granted and not acknowledged: one pending-ack record, whatever its size."""

    __slots__ = (
        "block",
        "consumer",
        "count",
        "granted_before",
        "granted_rows",
        "group",
        "is_from_before",
        "is_unreadable",
        "number",
        "rows",
    )

    def __init__(
        self,
        consumer: Consumer,
        block: DispatchBlock,
        rows: RowSet,
        count: int,
        group: SuspectGroup | None = None,
    ) -> None:
        self.consumer = consumer
        self.block = block
        self.rows = rows
        self.granted_rows = rows
        self.count = count
        self.group = group
        """The group of suspects that the rows belong to, if they are suspect."""
        self.is_unreadable = False
        """Whether its consumer cannot decode it: then it counts for one unacknowledged message."""
        self.is_from_before = False
        self.number = consumer.next_number
        self.granted_before = consumer.granted

    @property
    def messages(self) -> int:
        """How many are not acknowledged."""
        return self.rows.bit_count()

    @property
    def is_part(self) -> bool:
        """Whether others may have rows of its block, or nobody."""
        return self.group is not None or self.granted_rows != self.block.ref.all_rows

    def mark_from_before(self) -> None:
        """Mark the delivery as a predecessor's: how far it was handed over is not known."""
        self.is_from_before = True
        self.number = 0

    def recharge(self, granted_before: int) -> None:
        """It is sent again with the rows that are left."""
        self.granted_rows = self.rows
        self.granted_before = granted_before

    def handed_over_rows(self, handed_over: int | None = None) -> RowSet:
        """The pending rows that the application has got.

        By this count of the client's, or else its last report.
        """
        if self.is_from_before:
            return self.rows
        if handed_over is None:
            handed_over = self.consumer.handed_over
        handed = handed_over - self.granted_before
        return self.rows & row_sets.lowest(self.granted_rows, handed)


class SuspectGroup:
    """Rows of which one may have ended a consumer.

    Groups of one `origin` were made by the same crash: once one of them has explained the next, the others
    are suspect no more. `members` are all its rows when it was made, `waiting` those that wait, `deliveries`
    what consumers have of it.
    """

    __slots__ = ("deliveries", "last", "members", "number", "origin", "unexplained", "waiting")

    def __init__(self, number: int, origin: int, members: Members) -> None:
        self.number = number
        self.origin = origin
        self.members = members
        self.last = max(members)
        self.waiting: SortedDict = SortedDict()
        self.deliveries: dict[Delivery, None] = {}
        self.unexplained = 0
        """Crashes of consumers that had it and reported nothing of it."""


class ConsumerExit(Enum):
    """Tells a consumer that was closed from one that crashed."""

    CLOSED = "closed"
    CRASHED = "crashed"


class Attachment(NamedTuple):
    """`resumed`: numbers go on, and `again` is sent once more; otherwise they start at 1."""

    resumed: bool
    generation: int
    again: list[Grant]
