"""The findings of a check of a data directory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

MOST_DAMAGES = 10_000
"""So many are kept of one directory; the others are counted."""
_LOOKS = 3
_PAUSE_S = 0.05


class Kind(Enum):
    """The part of a data directory that is damaged."""

    STORE = "store"
    CATALOG = "catalog"
    PARTITION = "partition"
    """A directory that should be there, or belongs to another partition."""
    NOTE = "note"
    """A partition's note of its moves, or of its terms in an object store."""
    EPOCH = "epoch"
    MANIFEST = "manifest"
    SEGMENT = "segment"
    """The header of a segment file, which no entry needs."""
    ENTRIES = "entries"
    CURSOR = "cursor"
    DELAYED_INDEX = "delayed index"
    VERSION = "version"
    """Nothing is damaged: another build wrote the file."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged place.

    `topic` is the partition's full name, "" where a store is concerned or the name is lost. Of lost entries
    there are ledger and range; `entries` counts them, `messages` too where that is known.
    """

    kind: Kind
    path: str
    reason: str
    offset: int = 0
    topic: str = ""
    subscription: str = ""
    ledger_id: int = -1
    first_entry_id: int = -1
    last_entry_id: int = -1
    messages: int | None = None

    @property
    def entries(self) -> int:
        """How many entries are lost here."""
        return self.last_entry_id - self.first_entry_id + 1 if self.kind is Kind.ENTRIES else 0

    @property
    def place(self) -> tuple[Any, ...]:
        """The place, by which two checks of a directory in use find the same damage."""
        return self.kind, self.path, self.offset, self.subscription, self.ledger_id, self.first_entry_id

    def __str__(self) -> str:
        whose = self.topic or "the store"
        if self.subscription:
            whose += f", subscription {self.subscription}"
        where = f"{self.path}, byte {self.offset}" if self.offset else self.path
        if self.kind is not Kind.ENTRIES:
            return f"{whose}: {self.kind.value}: {self.reason} ({where})"
        count = "1 entry" if self.entries == 1 else f"{self.entries:,} entries"
        if self.messages is not None:
            count += f", {self.messages:,} message" + ("" if self.messages == 1 else "s")
        range_ = f"{self.ledger_id}:{self.first_entry_id}"
        if self.entries > 1:
            range_ += f" to {self.ledger_id}:{self.last_entry_id}"
        return f"{whose}: lost {range_} ({count}): {self.reason} ({where})"

    def describe(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        described = {**dataclasses.asdict(self), "kind": self.kind.value}
        if self.kind is Kind.ENTRIES:
            described["entries"] = self.entries
        else:
            for name in ("ledger_id", "first_entry_id", "last_entry_id", "messages"):
                del described[name]
        return described


class Totals(NamedTuple):
    """How much was read."""

    partitions: int = 0
    ledgers: int = 0
    segments: int = 0
    entries: int = 0
    messages: int = 0
    bytes: int = 0
    cursors: int = 0
    delayed_indexes: int = 0

    def plus(self, other: Totals) -> Totals:
        """Both together."""
        return Totals(*map(sum, zip(self, other, strict=True)))


@dataclass
class Findings:
    """The result of checking one thing, or several in turn."""

    damages: list[Damage] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Texts about places that are in order and may be worth a look."""
    totals: Totals = field(default_factory=Totals)
    left_out: int = 0
    """How many damages there are besides those that are kept."""

    def add(self, *damages: Damage) -> None:
        """Take further damages."""
        room = MOST_DAMAGES - len(self.damages)
        self.damages += damages[:room]
        self.left_out += max(len(damages) - max(room, 0), 0)

    def merge(self, other: Findings) -> None:
        """Take the findings of another check."""
        self.add(*other.damages)
        self.left_out += other.left_out
        self.remarks += other.remarks[: MOST_DAMAGES - len(self.remarks)]
        self.totals = self.totals.plus(other.totals)

    @property
    def is_clean(self) -> bool:
        return not self.damages

    @property
    def lost_entries(self) -> int:
        return sum(damage.entries for damage in self.damages)


def seen_thrice(look: Callable[[], Findings]) -> Findings:
    """Look up to three times, until nothing is found.

    Damage counts that each look has found. A file may be replaced, trimmed or half written at the moment of a
    look.
    """
    findings = look()
    for _ in range(_LOOKS - 1):
        if findings.is_clean:
            break
        time.sleep(_PAUSE_S)
        known = {damage.place for damage in findings.damages}
        findings = look()
        findings.damages = [damage for damage in findings.damages if damage.place in known]
    return findings
