"""Shared: round robin over the consumers with permits, better priority levels first.

The rule of turns. Each round gives every consumer that has room a turn: what waits divided by them, and at
least `dispatcher_max_round_robin_batch_size` messages (20). So what waits at once is shared out evenly. A
turn that is not used up when nothing waits any more goes on later, and a new round begins only when nobody
with room has any of its turn left: so is what comes by and by, in whatever portions. A batch is never cut, so
that it may take more than is left of a turn; later rounds make up for that. As long as two consumers have
room, neither gets more than 20 messages and a batch above the other (ADR 0099).

A block of single messages goes whole to one whose turn has room for it, for whole blocks are worth much more;
only what fits nobody's turn whole is cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, DispatchBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_types.policy import GrantSource, rows_that_fit
from pulsar_ray.dispatch.suspects.turns import dispatch_to_free


class SharedPolicy:
    """Any number of consumers; order is not kept.

    Suspects (left behind by a crash) go to consumers that hold nothing else, a group to each. While there are
    any and nobody works on them, the consumer with the fewest unacknowledged messages gets nothing else, so
    that it becomes free.
    """

    is_ordered = False
    limits_unacked = True
    must_elect = False
    active: Consumer | None = None

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self._levels: dict[int, _Level] = {}
        """By priority level, the best first."""

    def admit(self, spec: ConsumerSpec, present: Collection[Consumer]) -> None:
        """Everybody is welcome."""

    def join(self, consumer: Consumer) -> None:
        level = self._levels.setdefault(consumer.spec.priority_level, _Level(self._settings))
        level.consumers.append(consumer)
        level.left[consumer] = 0
        self._levels = dict(sorted(self._levels.items()))

    def leave(self, consumer: Consumer) -> None:
        level = self._levels[consumer.spec.priority_level]
        level.consumers.remove(consumer)
        del level.left[consumer]
        if not level.consumers:
            del self._levels[consumer.spec.priority_level]

    def dispatch(self, source: GrantSource) -> list[Grant]:
        """Grant until no consumer has room or nothing waits."""
        grants: list[Grant] = []
        blocks = source.blocks
        kept_free = self._kept_free(source, grants) if blocks.suspects.groups else None
        # Those who had better wait for a whole block do so until the block at the head is another one.
        resting: set[Consumer] = {kept_free} if kept_free is not None else set()
        at_least = len(resting)
        for level in self._levels.values():
            level.begin(source)
        while blocks.waiting_messages:
            for level in self._levels.values():
                consumer = level.next(source, resting)
                if consumer is not None:
                    break
            else:
                break
            before = len(grants)
            if not level.take_turn(consumer, source, grants):
                resting.add(consumer)
                level.rest(consumer)
            elif len(resting) > at_least and len(grants) > before:
                resting = {kept_free} if kept_free is not None else set()
        return grants

    def _kept_free(self, source: GrantSource, grants: list[Grant]) -> Consumer | None:
        consumers = [consumer for level in self._levels.values() for consumer in level.consumers]
        return dispatch_to_free(consumers, source, grants)


class _Level:
    """The consumers of one priority level, and what is left of their turns."""

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self.consumers: deque[Consumer] = deque()
        """The next in turn first."""
        self.left: dict[Consumer, int] = {}
        """Messages of each one's turn; below 0 after a batch that was larger."""
        self._is_shared_out = False
        self._longest_turn = 0
        self._cut: DispatchBlock | None = None
        """The block at the head that fits nobody's turn whole."""

    def begin(self, source: GrantSource) -> None:
        """Begin a call of `dispatch`: waiting messages are shared out anew, but for a few."""
        self._is_shared_out = source.blocks.waiting_messages <= self._settings.max_round_robin_batch_size

    def next(self, source: GrantSource, resting: Collection[Consumer]) -> Consumer | None:
        """The consumer whose turn it is, if anybody has room."""
        left, turn = self.left, self._settings.max_round_robin_batch_size
        if not self._is_shared_out and not self._share_out(source, resting):
            return None
        while (block := source.blocks.head()) is not None:
            size = 1 if block.is_batch else counted_rows.size(block.waiting)
            if size > self._longest_turn or block is self._cut:
                self._cut, size = block, 1
            # Where turns are long, a batch goes to whom most is left: there may be little behind it.
            furthest_behind = block.is_batch and self._longest_turn > turn
            found: Consumer | None = None
            with_room = most = 0
            for _ in range(len(self.consumers)):
                consumer = self.consumers[0]
                self.consumers.rotate(-1)
                if consumer in resting:
                    continue
                if source.room(consumer) <= 0:
                    left[consumer] = 0
                    continue
                with_room += 1
                most = max(most, left[consumer])
                if left[consumer] >= size and (found is None or left[consumer] > left[found]):
                    found = consumer
                    if not furthest_behind:
                        break
            if found is not None or not with_room:
                return found
            if most > 0:
                self._cut = block
            else:
                self._share_out(source, resting)
        return None

    def take_turn(self, consumer: Consumer, source: GrantSource, grants: list[Grant]) -> bool:
        """Grant messages of a turn; False: its consumer waits for a whole block."""
        left, turn = self.left, self._settings.max_round_robin_batch_size
        has_any = False
        while left[consumer] > 0 and (block := source.blocks.head()) is not None:
            if (room := source.room(consumer)) <= 0:
                left[consumer] = 0
                break
            wanted = counted_rows.size(block.waiting)
            if block.is_batch:
                if has_any and self._longest_turn > turn:
                    break
            elif wanted > left[consumer] and block is not self._cut:
                break
            fitting = wanted if wanted <= room else rows_that_fit(consumer, block, wanted, room)
            if not fitting:
                return has_any
            if not block.is_batch:
                fitting = min(fitting, left[consumer])
            grants.append(source.grant(consumer, block, fitting))
            left[consumer] -= grants[-1].messages
            has_any = True
        return True

    def rest(self, consumer: Consumer) -> None:
        """Share out anew what a consumer would have got that waits for a whole block."""
        self.left[consumer] = 0
        self._is_shared_out = False

    def _share_out(self, source: GrantSource, resting: Collection[Consumer]) -> bool:
        """Lengthen everybody's turn until nearly all that waits has a place in one.

        Returns whether anybody has room.
        Consumers owe nothing to those who had no room.
        """
        left = self.left
        takers: list[Consumer] = []
        for consumer in self.consumers:
            if consumer not in resting and source.room(consumer) > 0:
                takers.append(consumer)
            else:
                left[consumer] = 0
        self._is_shared_out, self._cut = True, None
        if not takers:
            return False
        most = max(left[consumer] for consumer in takers)
        placed = sum(left[consumer] for consumer in takers if left[consumer] > 0)
        waiting = min(source.blocks.waiting_messages, source.room_of_all())
        more = (waiting - placed) // len(takers)
        if most <= 0:
            more = max(more, self._settings.max_round_robin_batch_size) - most
        if more > 0:
            for consumer in takers:
                left[consumer] += more
        self._longest_turn = most + max(more, 0)
        return True
