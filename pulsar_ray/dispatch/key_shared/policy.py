"""Key_Shared: every message goes to the consumer that owns its key's slot (ADR 0011).

Rows go out in the order of the log per consumer, what came back before what is new. A slot that moved to
another consumer waits, alone, until its former owner has acknowledged or given back what it holds of it.
Rows of one block with different owners are several grants of that block.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pulsar_ray.dispatch.blocks import counted_rows
from pulsar_ray.dispatch.blocks.dispatch_blocks import DispatchBlocks
from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec, Delivery, DispatchBlock
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.key_shared.hash_regions import (
    AutoSplitRanges,
    HashRegions,
    HashRing,
    KeySharedSpec,
    StickyRanges,
)
from pulsar_ray.dispatch.key_shared.key_routes import KeyRoutes, WaitingIndex
from pulsar_ray.dispatch.subscription_types.policy import GrantSource, rows_that_fit
from pulsar_ray.dispatch.suspects.turns import dispatch_to_owners, end_patience, held_slots
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.model import row_sets
from pulsar_ray.model.enums import KeySharedMode
from pulsar_ray.model.row_sets import RowSet


def new_regions(spec: KeySharedSpec, replica_points: int) -> HashRegions:
    """Make the division of the slots.

    `replica_points` 0 means by hash range, not by a ring.
    """
    if spec.mode is KeySharedMode.Sticky:
        return StickyRanges()
    return HashRing(replica_points) if replica_points else AutoSplitRanges()


class KeySharedPolicy:
    """Keeps the order of each key while consumers come, go and fail.

    Priority levels have no effect, as in Pulsar. Suspects (left behind by a crash) go to their slot's owner
    once it holds nothing else; of their slots what waits before them goes out first, and nothing behind them.
    """

    is_ordered = False
    limits_unacked = True
    must_elect = False
    active: Consumer | None = None

    def __init__(self, mode: KeySharedMode, regions: HashRegions, blocks: DispatchBlocks) -> None:
        self.mode = mode
        self.slotting = regions.slotting
        self.routes = KeyRoutes(regions)
        self.index = WaitingIndex(self.routes)
        self._blocks = blocks
        self.is_short = True
        """Whether somebody may have room for more than what was read."""
        self._must_rebuild = True
        self._suspects_seen = 0
        self._changed: dict[tuple[int, int], DispatchBlock] = {}
        self._freed: set[int] = set()
        blocks.watcher = self

    # ---- consumers

    def admit(self, spec: ConsumerSpec, present: Collection[Consumer]) -> None:
        """Give a consumer its slots.

        Raises ConsumerBusy for another mode than the first consumer's, ConsumerAssignError for ranges that
        cannot be had; then nothing has changed.
        """
        if spec.key_shared.mode != self.mode:
            raise ConsumerBusy(
                f"the subscription's consumers are {self.mode!s}, so {spec.name!r} with "
                f"{spec.key_shared.mode!s} is refused: subscribe with their mode"
            )
        self.routes.admit(spec)

    def join(self, consumer: Consumer) -> None:
        self.routes.join(consumer)
        self._must_rebuild = True

    def leave(self, consumer: Consumer) -> None:
        self.routes.leave(consumer)
        self._must_rebuild = True

    # ---- what happens to blocks

    def came_back(self, block: DispatchBlock) -> None:
        self._changed[block.key] = block

    def restored(self, delivery: Delivery) -> None:
        self.routes.restored(delivery)
        self._must_rebuild = True

    def settled(self, delivery: Delivery, before: RowSet) -> None:
        if freed := self.routes.settled(delivery, before):
            self._freed.update(freed)

    def cleared(self) -> None:
        self.routes.cleared()
        self._must_rebuild = self.is_short = True

    # ---- dispatching

    def dispatch(self, source: GrantSource) -> list[Grant]:
        """Grant until no consumer has room or nothing is left for those who have."""
        grants: list[Grant] = []
        if self._blocks.suspects.groups:
            end_patience(self.routes.consumers, source)
        self._update_index(source.now_ms)
        kept: set[int] = set()
        if self._blocks.suspects.waiting:
            kept = dispatch_to_owners(self.routes, self.index, self._has_others, source, grants)
        for number, consumer in enumerate(self.routes.consumers):
            # Most have no permits most of the time; asking for a blocked one's room may end that.
            if (
                self.index.ready[number]
                and number not in kept
                and (consumer.credit > consumer.granted or consumer.is_blocked)
                and consumer.declined != (consumer.credit, consumer.granted, consumer.window)
            ):
                self._dispatch_ready(source, number, grants)
        self._dispatch_fresh(source, kept, grants)
        return grants

    def _has_others(self, number: int) -> bool:
        """Whether messages that are not suspect may wait for a consumer."""
        return bool(self.index.ready[number] or self._blocks.fresh)

    def _update_index(self, now_ms: int) -> None:
        blocks = self._blocks
        if blocks.fresh and (blocks.waiting or blocks.suspects.waiting):
            self._pass_by_fresh()
        if blocks.suspects.version != self._suspects_seen:
            self._hold_suspects()
        if self._must_rebuild:
            self.index.rebuild(blocks.waiting, now_ms)
        else:
            for slot in self._freed:
                self.index.free(slot, now_ms)
            for block in self._changed.values():
                self.index.put(block, now_ms)
        self._must_rebuild = False
        self._freed.clear()
        self._changed.clear()

    def _hold_suspects(self) -> None:
        """Hold back the slots of suspects as they are now."""
        suspects = self._blocks.suspects
        self._suspects_seen = suspects.version
        added, freed = self.routes.hold(held_slots(suspects))
        self._must_rebuild |= bool(added)
        self._freed.update(freed)

    def _pass_by_fresh(self) -> None:
        """Let fresh blocks wait that are below one that came back, or a suspect.

        Ready blocks come before fresh ones, and suspects find what waits before them among parked ones.

        A block can come back that was never dispatched here: its consumer had it from a former dispatcher.
        """
        fresh, waiting, suspects = self._blocks.fresh, self._blocks.waiting, self._blocks.suspects.waiting
        last = max(blocks.peekitem(-1)[0] for blocks in (waiting, suspects) if blocks)
        while fresh and fresh[0].key <= last:
            block = fresh.popleft()
            if block.waiting:
                waiting[block.key] = self._changed[block.key] = block

    def _dispatch_ready(self, source: GrantSource, number: int, grants: list[Grant]) -> None:
        """Blocks that came back, or of which not everybody could take his rows at first."""
        consumer, ready = self.routes.consumers[number], self.index.ready[number]
        while ready and source.room(consumer) > 0:
            key, block = ready.peekitem(0)
            if self._take(source, block, [number], grants):
                return
            del ready[key]

    def _dispatch_fresh(self, source: GrantSource, kept: set[int], grants: list[Grant]) -> None:
        """Blocks nobody has looked at yet: all that have room take their rows at once."""
        blocks, fresh = self._blocks, self._blocks.fresh
        takers = self._takers(source, kept)
        while fresh and takers:
            block = fresh.popleft()
            if not block.waiting:
                continue
            self._take(source, block, takers, grants)
            if block.waiting:
                blocks.waiting[block.key] = block
                self.index.put(block, source.now_ms)
            if block.waiting or len(grants) & 63 == 0:
                takers = self._takers(source, kept)
        self.is_short = bool(takers)

    def _takers(self, source: GrantSource, kept: set[int]) -> list[int]:
        ready = self.index.ready
        return [
            number
            for number, consumer in enumerate(self.routes.consumers)
            if not ready[number] and number not in kept and source.room(consumer) > 0
        ]

    def _take(
        self, source: GrantSource, block: DispatchBlock, takers: Sequence[int], grants: list[Grant]
    ) -> bool:
        """Grant a block's rows to owners among the takers, as far as they have room.

        Returns whether something is left for them.
        """
        slots = block.slots
        if not isinstance(slots, int):
            return self._take_rows(source, block, takers, grants)
        number = int(self.routes.table[slots])
        if number not in takers:
            return False
        consumer = self.routes.consumers[number]
        while block.waiting and (room := source.room(consumer)) > 0:
            grants.append(source.grant(consumer, block, room))
        return bool(block.waiting)

    def _take_rows(
        self, source: GrantSource, block: DispatchBlock, takers: Sequence[int], grants: list[Grant]
    ) -> bool:
        shares, is_left = self.routes.shares(block), False
        waiting = counted_rows.rows_of(block.waiting)
        for number in takers:
            mine = shares.get(number, 0) & waiting
            if not mine:
                continue
            consumer = self.routes.consumers[number]
            wanted, room = mine.bit_count(), source.room(consumer)
            fitting = rows_that_fit(consumer, block, wanted, room)
            if room > 0 and not fitting:
                consumer.declined = (consumer.credit, consumer.granted, consumer.window)
            chosen = row_sets.lowest(mine, fitting)
            is_left |= chosen != mine
            for rows, count in self._blocks.take_rows(block, chosen) if chosen else ():
                grants.append(source.grant_taken(consumer, block, rows, count))
        self._blocks.queue_rest(block)
        return is_left
