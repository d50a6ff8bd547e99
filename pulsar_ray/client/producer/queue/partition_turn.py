"""Follows whether keyless messages go to one partition just now."""

from __future__ import annotations

from pulsar_ray.client.producer.routing import BatchTurnsRouter


class PartitionTurn:
    """One partition's place among those that take turns, batch by batch.

    Without turns each message is at its place. The queue's state lock guards it.
    """

    __slots__ = ("_partition", "_turns")

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._turns: BatchTurnsRouter | None = None

    def join(self, turns: BatchTurnsRouter) -> None:
        """Take part; called once, before any message is added in turn."""
        self._turns = turns

    def is_elsewhere(self) -> bool:
        """Whether another partition has the turn."""
        return self._turns is not None and self._turns.current != self._partition

    def pass_on(self) -> None:
        """Give the turn to the next partition that is there, if there is one."""
        if self._turns is not None:
            self._turns.pass_on(self._partition)

    def end(self) -> None:
        """Give the turn to the next partition: the batch with messages in turn is finished."""
        if self._turns is not None:
            self._turns.batch_sealed(self._partition)
