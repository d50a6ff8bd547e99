"""How many messages a partition's dispatcher may have sent a consumer in all, and when it is told anew."""

from __future__ import annotations

from pulsar_ray.session.requests import Credit


class ConsumerCredit:
    """What the dispatcher was told last; the consumer's lock guards it.

    Credit is absolute: what was consumed and the window on top. A report tells it when half of a window is
    consumed: the next messages are on their way while the other half is.
    """

    __slots__ = ("_consumer_id", "_later_half", "_said", "due")

    def __init__(self, consumer_id: int) -> None:
        self._consumer_id = consumer_id
        self._said = -1
        self._later_half = 0
        self.due = 0
        """From so many consumed messages on, there may be something to report."""

    def unsay(self) -> None:
        """The consumer was opened again: its dispatcher may know of no credit."""
        self._said = -1

    def due_report(self, window: int, consumed: int, received: int, *, always: bool = False) -> Credit | None:
        """What to tell the dispatcher, if that changed enough to matter; it counts as told."""
        # The dispatcher counts on hearing of it when half of the window that it knows is consumed, even if
        # that became smaller.
        self.due = self._said - max(_later_half(window), self._later_half)
        if not always and self._said >= 0 and consumed < self.due:
            return None
        return self._report(window, consumed, received)

    def early_report(self, window: int, consumed: int, received: int) -> Credit | None:
        """What `due_report` would say soon, for who writes to the dispatcher anyway; it counts as told."""
        if consumed + window - self._said < max(1, window // 4):
            return None
        return self._report(window, consumed, received)

    def _report(self, window: int, consumed: int, received: int) -> Credit:
        credit = consumed + window
        self._said = max(self._said, credit)
        self._later_half = _later_half(window)
        self.due = self._said - self._later_half
        return Credit(self._consumer_id, credit, received, consumed)


def _later_half(window: int) -> int:
    """How much of a window may be left when more is asked for; of a window of 1, nothing."""
    return window - max(1, window // 2)
