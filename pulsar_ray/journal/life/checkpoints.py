"""A life writes its index at times, and deletes what the index makes superfluous."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pulsar_ray.journal.life.uploads import Uploads
from pulsar_ray.journal.objects import (
    IndexObject,
    Place,
    index_key,
    journal_prefix,
    pack_index,
    place_of,
    unpack_index,
)
from pulsar_ray.journal.partition_state import PartitionState
from pulsar_ray.journal.reading import create
from pulsar_ray.journal.requests import Delete, ListKeys, Shipped, Task, ask, until
from pulsar_ray.journal.shipping import Shipping

MOST_INDEX_BYTES = 16 * 1024 * 1024
"""Ends of files may take so much of an index before they become pieces."""
LEAST_INLINE_BYTES = 512
TRIES = 3
"""A file that is replaced meanwhile ends one; many partitions often have such a file."""
T = TypeVar("T")


class Checkpoints:
    """One at a time is written, of what `mirror` says that the shipped prefix has.

    `depose` is called if the index of a later life is met, and `look_for_gone` if a file is not here as it
    was shipped: it queues what says so of files that nobody told of.
    """

    def __init__(
        self,
        shipping: Shipping,
        mirror: dict[str, PartitionState],
        uploads: Uploads,
        nonce: Callable[[], bytes],
        depose: Callable[[], None],
        look_for_gone: Callable[[], None],
    ) -> None:
        self._shipping, self._mirror, self._uploads = shipping, mirror, uploads
        self._nonce, self._depose, self._look_for_gone = nonce, depose, look_for_gone
        self.index_number = -1
        """The number of the newest index that is known."""
        self._is_under_way = False

    def run(self) -> Task[bool]:
        """Write an index unless one is under way, then delete what is before it.

        Returns whether it was written.
        """
        if self._is_under_way:
            return False
        return (yield from self.alone(self.tries()))

    def alone(self, work: Task[T]) -> Task[T]:
        """Run a task while no checkpoint is under way, and let none begin meanwhile."""
        yield from until(lambda: not self._is_under_way)
        self._is_under_way = True
        try:
            return (yield from work)
        finally:
            self._is_under_way = False

    def tries(self) -> Task[bool]:
        """Try to write an index some times; the caller is alone."""
        for _ in range(TRIES):
            if (yield from self.write()):
                return True
            yield Shipped(self._shipping.turn)  # and with that what says which files have gone
        return False

    def mirror_copy(self) -> dict[str, PartitionState]:
        """Return what an index tells, as the shipped prefix has it."""
        return {partition: state.copy() for partition, state in self._mirror.items()}

    def write(self) -> Task[bool]:
        """Write an index of the present prefix; False if files changed meanwhile."""
        start, packed, states = self._start(), {}, self.mirror_copy()
        files = sum(len(state.files) for state in states.values())
        inline_bytes = min(
            self._uploads.inline_bytes, max(LEAST_INLINE_BYTES, MOST_INDEX_BYTES // max(files, 1))
        )
        for partition, state in states.items():
            if not self._uploads.is_here(partition, state.term):
                return False  # it is being replaced or dropped; the next index will tell
            tails = yield from self._uploads.upload(partition, state, inline_bytes)
            if tails is None:
                self._look_for_gone()
                return False
            self._note_pieces(partition, state)  # the next try needs them no more
            packed[partition] = state.pack(tails)
        if not (yield from self._write_index(IndexObject(self._nonce(), start, packed))):
            return False
        yield from self._clear_before(start)
        return True

    def _start(self) -> Place:
        """Return where reading begins behind an index of now."""
        return Place(self._shipping.life, self._shipping.prefix)

    def _write_index(self, index: IndexObject) -> Task[bool]:
        while True:
            key = index_key(self._shipping.store, self.index_number + 1)
            other = yield from create(key, pack_index(index))
            if other is not None and unpack_index(key, other).start > index.start:
                self._depose()  # it is of a later life
                return False
            self.index_number += 1
            if other is None:
                return True  # else it was a former life's, which arrived late

    def _note_pieces(self, partition: str, state: PartitionState) -> None:
        mirror = self._mirror.get(partition)
        if mirror is not None and mirror.term == state.term:
            for name, file in state.files.items():
                if name in mirror.files:
                    mirror.files[name].pieces = list(file.pieces)

    def _clear_before(self, start: Place) -> Task[None]:
        names = yield from ask(ListKeys(journal_prefix(self._shipping.store)))
        yield Delete(tuple(name for name in names if place_of(name) < start))
        indexes = yield from ask(ListKeys(f"index/{self._shipping.store}/"))
        yield Delete(tuple(indexes[:-1]))
