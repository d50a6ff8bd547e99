"""Deliveries of a consumer are numbered anew whenever its dispatcher does not know it."""

from __future__ import annotations

import itertools

NUMBERING_BITS = 20


class DeliveryNumberings:
    """Each numbering has an id, which rises with the dispatcher's epoch.

    So a consumer that missed the answer to its attach is not believed to have what it had of an earlier one.
    """

    def __init__(self, epoch: int) -> None:
        self._ids = itertools.count(epoch << NUMBERING_BITS)
        self._of: dict[int, int] = {}

    def of(self, incarnation: int, *, is_known: bool) -> int:
        """The id of a consumer's numbering: a new one unless the consumer is known."""
        if not is_known:
            self._of[incarnation] = next(self._ids)
        return self._of[incarnation]

    def forget(self, incarnation: int) -> None:
        """The consumer is gone."""
        self._of.pop(incarnation, None)
