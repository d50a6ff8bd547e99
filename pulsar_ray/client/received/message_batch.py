"""Lists of received messages, made lazily."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import overload

from pulsar_ray.client.received.message import BlockRows, Message


class MessageBatchView(Sequence[Message]):
    """Messages in order, whose objects are made when looked at and not kept.

    Thousands of live objects would be work for the garbage collector at every step. `acknowledge` takes it
    whole by its `parts`, without making any object.
    """

    __slots__ = ("_ends", "parts")

    def __init__(self, parts: Iterable[BlockRows]) -> None:
        self.parts = [part for part in parts if part.rows]
        self._ends = list(accumulate(len(part.rows) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...

    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        count = len(self)
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(count))]
        place = index + count if index < 0 else index
        if not 0 <= place < count:
            raise IndexError(f"message {index} of {count}")
        part = bisect_right(self._ends, place)
        block, rows = self.parts[part]
        return Message(block, rows[place - self._ends[part]])

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(map(Message, repeat(block), rows) for block, rows in self.parts)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (MessageBatchView, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"MessageBatchView({len(self)} messages)"
