"""Credit that a consumer gives to a partition's dispatcher, and when it is reported anew."""

from __future__ import annotations

from pulsar_ray.session.requests import Credit


class ConsumerCredit:
    """Remembers the credit that the dispatcher knows; the consumer's lock guards it.

    Credit is absolute: what was consumed and the window on top. A report is due when half of a window is
    consumed: the next messages are on their way while the other half is.
    """

    __slots__ = ("_consumer_id", "_later_half", "_reported", "due")

    def __init__(self, consumer_id: int) -> None:
        self._consumer_id = consumer_id
        self._reported = -1
        self._later_half = 0
        self.due = 0
        """Consumed messages from which on there may be something to report."""

    def forget_reports(self) -> None:
        """Forget the reports: a dispatcher that opened the consumer again may know none."""
        self._reported = -1

    def due_report(self, window: int, consumed: int, received: int, *, always: bool = False) -> Credit | None:
        """The report to send, if enough has changed; it counts as sent."""
        # The dispatcher expects a report when half of the window that it knows is consumed, even if the
        # window became smaller since.
        self.due = self._reported - max(_later_half(window), self._later_half)
        if not always and self._reported >= 0 and consumed < self.due:
            return None
        return self._report(window, consumed, received)

    def early_report(self, window: int, consumed: int, received: int) -> Credit | None:
        """The report that is nearly due, to go with another packet; it counts as sent."""
        if consumed + window - self._reported < max(1, window // 4):
            return None
        return self._report(window, consumed, received)

    def _report(self, window: int, consumed: int, received: int) -> Credit:
        credit = consumed + window
        self._reported = max(self._reported, credit)
        self._later_half = _later_half(window)
        self.due = self._reported - self._later_half
        return Credit(self._consumer_id, credit, received, consumed)


def _later_half(window: int) -> int:
    """Messages of a window that may be left when more is asked for.

    Of a window of 1 none may be left.
    """
    return window - max(1, window // 2)
