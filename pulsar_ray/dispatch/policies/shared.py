"""Shared: round robin over the consumers with permits, better priority levels first.

The rule of turns. A turn of a consumer is `max(20, waiting messages / eligible consumers)` messages,
computed once per round of dispatching. A block stays whole if it has at most twice that many rows; a larger
one is cut at the turn (unless it is a batch, which is never cut), and so is the rest of one that was cut.
After its first block a turn takes further blocks as long as they fit whole. So where the backlog is deep
blocks stay whole (Arrow batches are worth much more whole), where few messages wait they are spread in runs
of 20, and one large block that arrives alone is split evenly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.policies.policy import GrantSource, rows_that_fit
from pulsar_ray.dispatch.suspects.turns import dispatch_to_free

TURN_MESSAGES = 20


class SharedPolicy:
    """Any number of consumers; order is not kept.

    Suspects (left behind by a crash) go to consumers that hold nothing else, a group to each. While there are
    any and nobody works on them, the consumer with the fewest unacknowledged messages gets nothing else, so
    that it becomes free.
    """

    is_ordered = False
    limits_unacked = True
    must_elect = False

    def __init__(self) -> None:
        self._levels: dict[int, deque[Consumer]] = {}
        """By priority level, the best first: consumers, the next in turn first."""

    def admit(self, spec: ConsumerSpec, present: Collection[Consumer]) -> None:
        """Everybody is welcome."""

    def join(self, consumer: Consumer) -> None:
        self._levels.setdefault(consumer.spec.priority_level, deque()).append(consumer)
        self._levels = dict(sorted(self._levels.items()))

    def leave(self, consumer: Consumer) -> None:
        level = consumer.spec.priority_level
        self._levels[level].remove(consumer)
        if not self._levels[level]:
            del self._levels[level]

    def dispatch(self, source: GrantSource) -> list[Grant]:
        """Grant until no consumer has room or nothing waits."""
        grants: list[Grant] = []
        blocks = source.blocks
        passed_over = self._kept_free(source, grants) if len(blocks.suspects) else None
        turns: dict[int, int] = {}
        # Those who had better wait for a whole block do so until the block at the head is another one.
        holding_back: set[Consumer] = set()
        while blocks.waiting_messages:
            consumer, room = self._next(source, holding_back, passed_over)
            if consumer is None:
                break
            level = consumer.spec.priority_level
            if level not in turns:
                turns[level] = self._turn_messages(source, level)
            before = len(grants)
            self._take_turn(source, consumer, room, turns[level], grants)
            if len(grants) > before:
                holding_back.clear()
            else:
                holding_back.add(consumer)
        return grants

    def _next(
        self, source: GrantSource, holding_back: set[Consumer], passed_over: Consumer | None
    ) -> tuple[Consumer | None, int]:
        """The consumer whose turn it is, and how many messages it may get."""
        for consumers in self._levels.values():
            for _ in range(len(consumers)):
                consumer = consumers[0]
                consumers.rotate(-1)
                if consumer is passed_over or consumer in holding_back:
                    continue
                if (room := source.room(consumer)) > 0:
                    return consumer, room
        return None, 0

    def _turn_messages(self, source: GrantSource, level: int) -> int:
        waiting = source.blocks.waiting_messages
        if waiting <= TURN_MESSAGES:
            return TURN_MESSAGES
        eligible = sum(1 for consumer in self._levels[level] if source.room(consumer) > 0)
        return max(TURN_MESSAGES, waiting // max(eligible, 1))

    def _take_turn(
        self, source: GrantSource, consumer: Consumer, room: int, turn: int, grants: list[Grant]
    ) -> None:
        left = turn
        while room > 0 and (block := source.blocks.head()) is not None:
            wanted = counted_rows.size(block.waiting)
            if left == turn:
                is_whole = wanted == block.ref.messages
                if wanted > (2 * turn if is_whole else turn) and not block.is_batch:
                    wanted = turn
            elif wanted > left:
                return
            fitting = wanted if wanted <= room else rows_that_fit(consumer, block, wanted, room)
            if not fitting:
                return
            grants.append(source.grant(consumer, block, fitting))
            left -= fitting
            if left <= 0:
                return
            room = source.room(consumer)

    def _kept_free(self, source: GrantSource, grants: list[Grant]) -> Consumer | None:
        consumers = [consumer for level in self._levels.values() for consumer in level]
        return dispatch_to_free(consumers, source, grants)
