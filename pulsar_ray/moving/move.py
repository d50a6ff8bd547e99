"""Decides the steps of one partition's move between two living stores (ADR 0141).

A move is broken off at any step before `OWN`, and the partition stays where it was. Behind `OWN` it is where
it was to go, whatever fails then. `OWN` itself is one entry of the catalog, which says who serves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

SMALL_REST_BYTES = 4 << 20
"""So little is copied while publishers wait."""
MOST_ROUNDS = 16


class Step(Enum):
    """Something that a move has carried out next, by others."""

    PREPARE = "preparing"
    """The target has room, and keeps what comes under the move's id."""
    COPY = "copying"
    """The target copies what is durable by now, while the source serves."""
    STOP = "stopping"
    """Nobody starts the partition from now on, and its processes end."""
    FENCE = "fencing"
    """No former owner can confirm anything at the source, whose files are final."""
    LAST = "copying the last part"
    """The target copies the rest."""
    INSTALL = "installing"
    """The target gives the files their place, where nobody serves them yet."""
    OWN = "taking over"
    """The catalog says that the partition is at the target, unless somebody changed it meanwhile."""
    CLEAR = "clearing"
    """The source deletes its files."""
    DISCARD = "discarding"
    """The target deletes what it has: the partition stays at the source."""
    RESUME = "resuming"
    """The partition may be started, and is if it ran before."""


_BEHIND = {
    Step.PREPARE: Step.COPY,
    Step.STOP: Step.FENCE,
    Step.FENCE: Step.LAST,
    Step.LAST: Step.INSTALL,
    Step.INSTALL: Step.OWN,
    Step.CLEAR: Step.RESUME,
    Step.DISCARD: Step.RESUME,
    Step.RESUME: None,
}
_BREAKS_OFF = (Step.PREPARE, Step.COPY, Step.STOP, Step.FENCE, Step.LAST, Step.INSTALL)
_MAY_HAVE_LEFT = (Step.FENCE, Step.LAST, Step.INSTALL)
WAITING = "waiting"


@dataclass(slots=True)
class Move:
    """One move, which is told what became of each `step`.

    `step` is None when all is done: `is_moved` says where the partition is, `reason` why it was broken off.
    """

    move_id: str
    name: str
    number: int
    source: str
    target: str
    step: Step | None = Step.PREPARE
    is_begun: bool = False
    is_held: bool = False
    """Whether nobody may start the partition."""
    is_moved: bool = False
    reason: str = ""
    total_bytes: int = 0
    rest_bytes: int = 0
    rounds: int = 0
    is_outrun: bool = False
    """Whether the partition takes more than is copied, so that there is always more."""
    asked_ms: int = 0
    is_shipped: bool = False
    """Whether the partition is in an object store, whose catalog has decided before ours."""
    is_by_itself: bool = False
    """Whether nobody asked for this very move: its node is drained."""
    _given_up: str = field(default="", repr=False)

    def give_up(self, reason: str) -> None:
        """Break the move off at its next step, if it can be."""
        self._given_up = self._given_up or reason
        if not self.is_begun:
            self.step, self.reason = None, self._given_up

    @property
    def is_given_up(self) -> bool:
        """Whether somebody wants it broken off."""
        return bool(self._given_up)

    def next(self) -> Step | None:
        """Return the step to be carried out now; None at the end."""
        self.is_begun = True
        if self._given_up and self.step in _BREAKS_OFF:
            self.failed(self._given_up)
        if self.step is Step.STOP:
            self.is_held = True
        elif self.step is Step.RESUME:
            self.is_held = False
        return self.step

    def copied(self, total_bytes: int, rest_bytes: int) -> None:
        """Take in that a round of `COPY` ended, and how much had come meanwhile."""
        self.rounds += 1
        self.is_outrun = self.is_outrun or (self.rounds > 1 and rest_bytes * 2 > self.rest_bytes)
        self.total_bytes, self.rest_bytes = total_bytes, rest_bytes
        if rest_bytes <= SMALL_REST_BYTES or self.rounds >= MOST_ROUNDS:
            self.step = Step.STOP

    def owned(self, is_at_target: bool) -> None:
        """Take in what the catalog says behind `OWN`."""
        self.is_moved = is_at_target
        if is_at_target:
            self.reason = ""
        self.step = Step.CLEAR if is_at_target else Step.DISCARD
        if not is_at_target and not self.reason:
            self.reason = "it was deleted or moved by others meanwhile"

    def done(self) -> None:
        """Take in that the step was carried out."""
        assert self.step is not None
        self.step = _BEHIND[self.step]

    def failed(self, reason: str) -> None:
        """Take in why the step failed, or may have.

        It may have been carried out. A partition that the catalog has not decided about stays where it was;
        `OWN` is asked again.
        """
        assert self.step is not None
        if self.is_shipped and self.step in _MAY_HAVE_LEFT:
            # The object store is asked who owns it, and the source takes it back if nobody else does.
            self.reason = reason
            self.step = Step.OWN
        elif self.step in _BREAKS_OFF:
            self.reason = reason
            self.step = Step.DISCARD
        elif self.step is not Step.OWN:
            self.step = _BEHIND[self.step]

    def describe(self) -> dict[str, object]:
        """Return the fields of a move as others see them."""
        if self.step is None:
            state = "moved" if self.is_moved else "broken off"
        else:
            state = self.step.value if self.is_begun else WAITING
        return {
            "partition": self.name,
            "source": self.source,
            "target": self.target,
            "state": state,
            "totalBytes": self.total_bytes,
            "restBytes": self.rest_bytes,
            "reason": self.reason,
            "askedMs": self.asked_ms,
        }
