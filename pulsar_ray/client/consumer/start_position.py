"""The position where a seek or reader starts, and batch rows before it."""

from __future__ import annotations

from typing import Any, NamedTuple

from pulsar_ray.model.message_id import MessageId, seeks_of
from pulsar_ray.model.row_ranges import NO_ROWS, RowRanges


class StartPosition(NamedTuple):
    """A position for a dispatcher, and the rows that the client skips.

    `target` are the arguments of a dispatcher's seek. `skip` is (ledger id, entry id, rows): that many rows
    at the start of a batch lie before a position inside it. The dispatcher delivers the whole entry.
    """

    target: dict[str, Any]
    skip: tuple[int, int, int] | None

    @classmethod
    def at(cls, messageid: MessageId | int, inclusive: bool) -> StartPosition:
        """Begin behind a message id, or at a publish time in ms.

        With `inclusive` it begins at the message. Raises ValueError for values that no id has.
        """
        if isinstance(messageid, MessageId):
            messageid.check()
        return cls(_target(messageid, inclusive), _skipped_rows(messageid, inclusive))


class SkippedRows:
    """Knows rows of one partition that are left out, until the next seek.

    The consumer's lock guards it.
    """

    def __init__(self) -> None:
        self._of: tuple[int, int, int] | None = None
        self._seeks = 0

    def begin(self, skip: tuple[int, int, int] | None, generation: int) -> None:
        """Leave out rows in generations of as many seeks.

        `skip` is (ledger id, entry id, rows): so many rows from the batch's start on.
        """
        self._of, self._seeks = skip, seeks_of(generation)

    def end(self) -> None:
        """The subscription was sought again."""
        self._of = None

    def numbered_anew(self, generation: int) -> None:
        """Another dispatcher counts seeks anew."""
        self._seeks = seeks_of(generation)

    def __bool__(self) -> bool:
        """True if rows may be left out."""
        return self._of is not None

    def have(self, key: tuple[int, int], row: int, generation: int) -> bool:
        """Whether a row of this batch is left out."""
        return any(0 <= row < end for _, end in self.of(key, row + 1, generation))

    def of(self, key: tuple[int, int], batch_size: int, generation: int) -> RowRanges:
        """The rows of this batch, delivered in this generation, that are left out."""
        if self._of is None or self._of[:2] != key or self._seeks != seeks_of(generation):
            return NO_ROWS
        return ((0, min(self._of[2], batch_size)),)


def _target(messageid: MessageId | int, inclusive: bool) -> dict[str, Any]:
    if isinstance(messageid, int):
        return {"target": messageid, "inclusive": True}
    if messageid == MessageId.earliest:
        return {"target": "earliest", "inclusive": True}
    if messageid == MessageId.latest:
        return {"target": "latest", "inclusive": inclusive}
    first = messageid.first_chunk()
    if inclusive and first is not None:
        return {"target": [first.ledger_id(), first.entry_id()], "inclusive": True}
    target = [messageid.ledger_id(), messageid.entry_id()]
    return {"target": target, "inclusive": inclusive or _has_more_in_batch(messageid)}


def _has_more_in_batch(messageid: MessageId) -> bool:
    return messageid.batch_index() >= 0 and messageid.batch_index() + 1 != messageid.batch_size()


def _skipped_rows(messageid: MessageId | int, inclusive: bool) -> tuple[int, int, int] | None:
    if isinstance(messageid, int) or not (inclusive or _has_more_in_batch(messageid)):
        return None
    if messageid.batch_index() < 0:
        return None
    rows = messageid.batch_index() + (0 if inclusive else 1)
    return messageid.ledger_id(), messageid.entry_id(), rows
