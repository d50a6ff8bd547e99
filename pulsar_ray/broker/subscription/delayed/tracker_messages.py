"""The one call between a dispatcher and its tracker.

It carries state, not changes: a request that is lost, late or repeated harms nothing. The tracker does what
the latest one says; an answer is of use only to the request it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_ray.broker.subscription.log.segment_blocks import Segment
from pulsar_ray.managed_ledger.delayed.delayed_rows import RowKey
from pulsar_ray.model.message_id import Position


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """How far a dispatcher is, and what it wants."""

    epoch: int
    """The dispatcher's: a former one gets no answer."""
    log_directory: str
    subscription_number: int
    behind: Position
    """So far the tracker has read the log, by its last answer."""
    segments: tuple[Segment, ...]
    """Those that hold what lies behind that, as far as they are durable."""
    through: Position
    """The dispatcher has read the log so far: so far rows are handed over."""
    mark_delete: Position
    taken: RowKey
    """Everything up to here is with the dispatcher, and not wanted again."""
    floor_ms: int
    """Rows due by then the dispatcher finds in the log."""
    until_ms: int
    """Rows due by then are wanted."""
    messages: int
    """So many of them; 0 for none."""
    most_in_memory: int
    """So many rows are kept in memory at most."""
    anew: int = 0
    """The index is to be made anew from the log when this number has risen.

    The dispatcher then wants rows again that it had taken.
    """


@dataclass(frozen=True, slots=True)
class FollowAnswer:
    """How far a tracker is, and rows that are due."""

    through: Position
    """It has read the log so far."""
    dropped: RowKey
    """Rows up to here are in no index any more."""
    rows: bytes
    """Rows that are due, in order; see `delayed_rows`."""
    next_ms: int | None
    """When the next row is due, those in `rows` included; None without one."""
    entries: int
    """How many entries wait for their time, which is later than what was asked for."""
    has_more_to_do: bool
    """Whether it would go on reading or merging if it was called again."""
    problem: str = ""
