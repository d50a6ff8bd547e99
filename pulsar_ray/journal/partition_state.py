"""A journal's readers, and its writer's mirror, keep this state of partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal.objects import Append


@dataclass
class FileState:
    """One append-only file: pieces that are objects of their own, and the bytes behind them.

    A writer's mirror keeps no bytes (`tail` is None): they are in the directory.
    """

    pieces: list[tuple[int, int, int]] = field(default_factory=list)
    length: int = 0
    tail: bytearray | None = field(default_factory=bytearray)

    @property
    def base(self) -> int:
        """Where the bytes begin that no piece has."""
        return self.pieces[-1][1] if self.pieces else 0

    def append(self, offset: int, data: bytes) -> None:
        """Add bytes; they may come twice, never with other bytes, and never leave a hole."""
        if offset > self.length:
            raise JournalDamaged(f"a hole in a file: {offset} behind {self.length}")
        known = self.length - offset
        if self.tail is not None:
            begin = max(offset, self.base)
            old = bytes(self.tail[begin - self.base : begin - self.base + offset + len(data) - begin])
            if data[begin - offset : begin - offset + len(old)] != old:
                raise JournalDamaged(f"other bytes at the same offset {offset}")
            self.tail += data[known:]
        self.length = max(self.length, offset + len(data))

    def extend(self, offset: int, length: int) -> None:
        """Note that bytes were added, in a mirror that keeps none."""
        if offset > self.length:
            raise JournalDamaged(f"a hole in a file: {offset} behind {self.length}")
        self.length = max(self.length, offset + length)

    def cover(self, end: int, total: int) -> None:
        """Note that the bytes up to `end` are in a piece now, and their checksum."""
        if end > self.base:
            if self.tail is not None:
                del self.tail[: end - self.base]
            self.pieces.append((self.base, end, total))


@dataclass
class PartitionState:
    """The term, the files, and the marks that count, of one partition."""

    term: int
    left: set[int] = field(default_factory=set)
    files: dict[str, FileState] = field(default_factory=dict)

    def copy(self) -> PartitionState:
        """Return the state as it is now, without bytes."""
        files = {n: FileState(list(f.pieces), f.length, None) for n, f in self.files.items()}
        return PartitionState(self.term, set(self.left), files)

    def has_left(self, term: int) -> bool:
        """Whether the partition left its store in this very term."""
        return self.term == term and term in self.left

    def pack(self, tails: dict[str, bytes] | None = None) -> tuple[Any, ...]:
        """Return the state as an index tells it; `tails` are behind the pieces."""
        files = {
            name: (tuple(f.pieces), bytes(f.tail or b"") if tails is None else tails[name])
            for name, f in self.files.items()
        }
        return (self.term, 0, tuple(sorted(self.left)), files)

    @classmethod
    def unpack(cls, packed: Any, keeps_bytes: bool = True) -> PartitionState:
        """Make a state again of what `pack` returned."""
        term, _, left, files = packed
        state = cls(term, set(left))
        for name, (pieces, tail) in files.items():
            item = FileState(
                [(a, b, total) for a, b, total in pieces], 0, bytearray(tail) if keeps_bytes else None
            )
            item.length = item.base + len(tail)
            state.files[name] = item
        return state


def apply(states: dict[str, PartitionState], append: Append, mirrored: int | None = None) -> None:
    """Change the states as an append says, in every reader alike.

    A writer's mirror tells the length, and keeps no bytes.
    """
    partition, state, kind = append.partition, states.get(append.partition), append.mark[:1]
    if kind in (("drop",), ("forget",)):
        if state and (kind == ("forget",) or state.term == append.mark[1]):
            del states[partition]
        return
    if kind == ("adopt",):
        states[partition] = PartitionState.unpack(append.mark[1], mirrored is None)
        return
    if state is None:
        raise JournalDamaged(f"an append to {partition}, which was not adopted")
    if append.file:
        empty = FileState(tail=bytearray() if mirrored is None else None)
        file = state.files.setdefault(append.file, empty)
        if mirrored is None:
            file.append(append.offset, append.data)
        else:
            file.extend(append.offset, mirrored)
    if kind == ("gone",):
        for file in append.mark[1]:
            state.files.pop(file, None)
    elif kind == ("leave",):
        state.left.add(append.mark[1])
