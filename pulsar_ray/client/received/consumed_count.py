"""The messages of a partition that left the receiver queue are counted for its dispatcher."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import compress

from pulsar_ray.lane.progress_page import Counter, CounterName


class ConsumedCount:
    """Counts the messages that left the queue: handed over, left out, or dropped.

    The consumer's lock guards it. With a `counter` the dispatcher sees the count, also after a crash.
    """

    __slots__ = ("_counter", "consumed", "moving", "reports_until")

    def __init__(self, counter: Counter | None) -> None:
        self._counter = counter
        self.consumed = 0
        """Since the consumer's incarnation began."""
        self.moving = 0
        """Messages on their way to another topic, which do not count as consumed yet.

        Others behind them may have been handed over. So the window bounds what is being moved.
        """
        self.reports_until = 0
        """Up to so many consumed messages each is reported before it is handed over."""

    @property
    def counter_name(self) -> CounterName | None:
        """Where the dispatcher can see the count, None if nowhere."""
        return None if self._counter is None else self._counter.name

    def show(self) -> None:
        """Let the dispatcher see the count as it is now."""
        if (counter := self._counter) is not None:
            counter.write(self.consumed + self.moving)

    def show_each(self, rows: Iterator[int], messages: int) -> Iterator[int]:
        """Show each of the last messages as its row is taken from the result."""
        if (counter := self._counter) is None:
            return rows
        count = self.consumed + self.moving
        first = count - messages + 1
        counter.write(first - 1)
        return compress(rows, map(operator.not_, map(counter.write, range(first, count + 1))))

    def take_back(self, messages: int) -> None:
        """Messages are in the queue again."""
        self.consumed -= messages
        self.show()

    def end_moves(self) -> None:
        """Count what is being moved as consumed, however it ends."""
        self.consumed += self.moving
        self.moving = 0

    def release(self) -> None:
        """Show nothing any more: the consumer has left."""
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.release()
