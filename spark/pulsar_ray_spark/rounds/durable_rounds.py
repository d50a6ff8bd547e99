"""Do rounds of work on topics that a restart goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

RoundT = TypeVar("RoundT", bound="Round")


class Round(Protocol):
    """Ranges of partitions to be worked on together, decided before anything is done."""

    @property
    def is_committed(self) -> bool:
        """Whether the work is done for good."""

    @property
    def ends(self) -> Mapping[str, Any]:
        """The places behind the round, by partition; none once it is committed."""

    @property
    def reached(self) -> Mapping[str, Any]:
        """The place of each partition before which everything is committed, where the round says so."""

    def committed(self: RoundT) -> RoundT:
        """The state behind the round, which is a round without ranges."""


class RecordLog(Protocol):
    """Keeps the last record of its only writer, durably; see PlanLog."""

    @property
    def last(self) -> bytes | None: ...

    def append(self, record: bytes) -> None: ...


class DurableRounds(Generic[RoundT]):
    """Keeps the state of rounds that are planned, done, committed and released, one by one.

    The record stored last is the whole state. A round is stored before anything is done by it, and the broker
    gives up its messages behind its commit. So whoever takes over after a crash does the same round again,
    and no other, before anything is planned; and what a round needs is there as long as it may be done again.

    With `stores_commits` a commit is a record as well. Without one the work itself shows that it is done, and
    the last round is done again after every restart.
    """

    def __init__(
        self,
        log: RecordLog,
        encode: Callable[[RoundT], bytes],
        give_up: Callable[[Mapping[str, Any]], None],
        nothing: RoundT,
        *,
        stores_commits: bool,
    ) -> None:
        """`give_up` lets the broker drop all messages before some places, durably."""
        self._log = log
        self._encode = encode
        self._give_up = give_up
        self._stores_commits = stores_commits
        self._last = nothing
        self._unreleased: dict[str, Any] = {}

    @property
    def last(self) -> RoundT:
        """The round that was planned last; once it is committed, the state behind it."""
        return self._last

    @property
    def pending(self) -> RoundT | None:
        """The round that is planned and not committed: nothing may be planned before it is."""
        return None if self._last.is_committed else self._last

    def resume(self, decode: Callable[[bytes], RoundT]) -> bool:
        """Go on where former processes were; False if there were none. Raises what `decode` raises."""
        if self._log.last is None:
            return False
        self._last = decode(self._log.last)
        self._unreleased.update(self._last.reached)
        return True

    def begin(self, first: RoundT, *, releases: bool) -> None:
        """Store the state that the first round begins at, durably.

        `releases` says whether there are messages before it, which are of no use.
        """
        self._store(first)
        if releases:
            self._unreleased.update(first.reached)

    def plan(self, planned: RoundT) -> RoundT:
        """Make a round the pending one, durably; only if none is."""
        self._store(planned)
        return planned

    def commit(self) -> None:
        """Commit the pending round, whose work is done.

        After a crash before this it is done again.
        """
        ends, behind = self._last.ends, self._last.committed()
        if self._stores_commits:
            self._store(behind)
        self._last = behind
        self._unreleased.update(ends)

    def release(self) -> None:
        """Have the broker give up what is committed.

        After an error the next call tries the same again.
        """
        if self._unreleased:
            self._give_up(self._unreleased)
            self._unreleased.clear()

    def _store(self, state: RoundT) -> None:
        self._log.append(self._encode(state))
        self._last = state
