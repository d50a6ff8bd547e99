"""Hashes whose former consumer still has unacknowledged messages of them.

They wait, and only they, so that the messages of a key are with one consumer at a time (PIP-379).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Drain:
    """One hash at one consumer: its unacknowledged messages, and how often it kept messages waiting."""

    __slots__ = ("blocked_attempts", "unacked")

    def __init__(self, unacked: int) -> None:
        self.unacked = unacked
        self.blocked_attempts = 0


class Held(NamedTuple):
    """A consumer has this many unacknowledged messages of a slot that belongs to another one."""

    consumer_id: int
    slot: int
    messages: int


class DrainingHashes:
    """By consumer that drains, and by slot. Bounded by what consumers may have unacknowledged."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, Drain]] = {}
        self._cleared: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(drains) for drains in self._of.values())

    def is_drained_by(self, consumer_id: int) -> bool:
        """Whether this consumer drains any slot."""
        return consumer_id in self._of

    def holders(self, slot: int) -> list[int]:
        """The consumers that drain a slot."""
        return [consumer_id for consumer_id, drains in self._of.items() if slot in drains]

    def slots(self) -> set[int]:
        """All slots that drain."""
        return {slot for drains in self._of.values() for slot in drains}

    def replace(self, held: Iterable[Held]) -> None:
        """Take the slots that drain now; those that drained before keep their counters."""
        before, self._of = self._of, {}
        for consumer_id, slot, messages in held:
            drain = before.get(consumer_id, {}).get(slot) or Drain(0)
            drain.unacked = messages
            self._of.setdefault(consumer_id, {})[slot] = drain
        for consumer_id, drains in before.items():
            ended = sum(1 for slot in drains if slot not in self._of.get(consumer_id, {}))
            self._cleared[consumer_id] = self._cleared.get(consumer_id, 0) + ended

    def add(self, held: Held) -> None:
        """A consumer turns out to hold more messages of a slot that is another's."""
        drains = self._of.setdefault(held.consumer_id, {})
        drains.setdefault(held.slot, Drain(0)).unacked += held.messages

    def settle(self, consumer_id: int, slot: int, messages: int) -> bool:
        """So many messages are not pending any more; returns whether that ended the consumer's drain."""
        drains = self._of.get(consumer_id, {})
        drain = drains.get(slot)
        if drain is None:
            return False
        drain.unacked -= messages
        if drain.unacked > 0:
            return False
        del drains[slot]
        if not drains:
            del self._of[consumer_id]
        self._cleared[consumer_id] = self._cleared.get(consumer_id, 0) + 1
        return True

    def block(self, slot: int) -> None:
        """Messages of a slot were looked at and not dispatched, because it drains."""
        for drains in self._of.values():
            if (drain := drains.get(slot)) is not None:
                drain.blocked_attempts += 1

    def forget(self, consumer_id: int) -> None:
        """The consumer is gone."""
        self._of.pop(consumer_id, None)
        self._cleared.pop(consumer_id, None)

    def clear(self) -> None:
        """Nothing is pending anywhere."""
        self.replace(())

    def stats(self, consumer_id: int) -> dict[str, Any]:
        """Describe a consumer's draining hashes with Pulsar's names.

        Messages are counted, not entries.
        """
        drains = self._of.get(consumer_id, {})
        return {
            "drainingHashesCount": len(drains),
            "drainingHashesClearedTotal": self._cleared.get(consumer_id, 0),
            "drainingHashesUnackedMessages": sum(drain.unacked for drain in drains.values()),
            "drainingHashes": [
                {"hash": slot, "unackMsgs": drain.unacked, "blockedAttempts": drain.blocked_attempts}
                for slot, drain in sorted(drains.items())
            ],
        }
