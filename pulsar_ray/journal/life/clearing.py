"""A life deletes the pieces of what its journal lists no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from urllib.parse import unquote

from pulsar_ray.journal.life.directory import Directory
from pulsar_ray.journal.life.uploads import Uploads
from pulsar_ray.journal.objects import ledger_of, pieces_of, pieces_prefix
from pulsar_ray.journal.ownership import NOBODY, Ownership
from pulsar_ray.journal.partition_state import PartitionState
from pulsar_ray.journal.requests import UNKNOWN, Delete, ListKeys, Task, Wait, ask, pauses_s

TRIES_TO_CLEAR = 5


class Clearing:
    """Deletes only what the shipped prefix says, so before any seal.

    `served` returns what is shipped of a partition, None unless it is served; `lists` says whether a reader
    of the journal finds a file there, or will.
    """

    def __init__(
        self,
        store: str,
        directory: Directory,
        ownership: Ownership,
        uploads: Uploads,
        mirror: dict[str, PartitionState],
        served: Callable[[str], PartitionState | None],
        lists: Callable[[str, str], bool],
    ) -> None:
        self._store, self._directory, self._ownership = store, directory, ownership
        self._uploads, self._mirror, self._served, self._lists = uploads, mirror, served, lists
        self.going: set[tuple[str, str]] = set()
        """Files whose bytes may be queued yet, before what says that they are gone."""
        self.leaving: set[str] = set()
        """Partitions that left the journal, and whose pieces may be deleted yet."""
        self._unswept: deque[str] = deque()
        self._is_sweeping = False

    def files(self, partition: str, files: tuple[str, ...]) -> Task[None]:
        """Remove files that are gone, here and there."""
        self.going.difference_update((partition, file) for file in files)
        self._directory.unlink_files(partition, files)
        for file in files:
            names = yield from ask(ListKeys(pieces_of(partition, file)))
            if names:
                yield Delete(tuple(names))

    def dropped(self, partition: str) -> Task[None]:
        """Delete the pieces of a removed partition, and then the note that says so.

        A life that dies before that finds the note again.
        """
        yield from self._ownership.read()
        if partition in self._mirror:
            return  # its drop is on its way
        is_cleared = self._is_anothers(partition) or (yield from self._all_deleted(partition))
        if is_cleared and self._directory.is_dropped(partition):
            self._directory.remove(partition, self._directory.term(partition))

    def forgotten(self, partition: str) -> Task[None]:
        """Delete the pieces of a partition that left the journal, before it may come back.

        Its directory says that it left only now: in the journal it would be missing there after a restart.
        """
        yield from self._uploads.from_disk(partition, partial(self._directory.leave_out, partition))
        yield from self._ownership.read()
        if not self._is_anothers(partition):
            yield from self._all_deleted(partition)
        self.leaving.discard(partition)

    def _is_anothers(self, partition: str) -> bool:
        """Return whether the pieces are another store's; what nobody has claimed was uploaded here."""
        return self._ownership.owner(partition).store not in (NOBODY.store, self._store)

    def _all_deleted(self, partition: str) -> Task[bool]:
        names = yield from ask(ListKeys(pieces_prefix(partition)))
        for pause_s in islice(pauses_s(), TRIES_TO_CLEAR if names else 0):
            if (yield Delete(tuple(names), is_awaited=True)) is not UNKNOWN:
                return True
            yield Wait(pause_s)
        return not names

    def sweep(self, partition: str) -> Task[None]:
        """Delete what a life left that died before it had deleted it.

        One partition is looked at after the other, each once for each time that it begins to be served.
        """
        self._unswept.append(partition)
        if self._is_sweeping:
            return
        self._is_sweeping = True
        try:
            while self._unswept:
                yield from self._swept(self._unswept.popleft())
        finally:
            self._is_sweeping = False

    def _swept(self, partition: str) -> Task[None]:
        prefix = pieces_prefix(partition)
        names = yield from ask(ListKeys(prefix))
        if (state := self._served(partition)) is None:
            return
        rests = [name for name in names if self._is_rest(partition, name.removeprefix(prefix))]
        if not rests:
            return
        # A successor makes pieces of other files only when the catalog has it: after they were listed.
        yield from self._ownership.read()
        owner = self._ownership.owner(partition)
        if state is self._served(partition) and (owner.store, owner.term) == (self._store, state.term):
            yield Delete(tuple(rests))

    def _is_rest(self, partition: str, name: str) -> bool:
        """Return whether a piece is of a segment that nothing lists; its name never returns."""
        file = unquote(name.partition("/")[0])
        return (
            ledger_of(file) is not None
            and not self._lists(partition, file)
            and not self._directory.has(partition, file)
        )
