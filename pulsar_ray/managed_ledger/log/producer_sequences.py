"""Remembers each producer's highest sequence id, so that repeats are stored once.

Pure. The ids are those in the stored blocks (ADR 0036): what a checkpoint says of a producer, then its blocks
behind that. So no crash leaves a stored message unknown, or a lost one known. A block of several messages
takes all ids from its first to its last one; of a message in chunks the last chunk takes the id.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from pulsar_ray.errors import ProducerBusy, PulsarException
from pulsar_ray.format.block import CHUNK, BlockHeader
from pulsar_ray.format.metadata import NO_METADATA, BlockMetadata
from pulsar_ray.managed_ledger.log.manifest.manifest_records import SequenceIds
from pulsar_ray.model.message_id import Position

NO_SEQUENCE_ID = -1
"""Below every sequence id."""
KEPT_PREFIX = "pulsar-ray-query-"
"""Producers whose names begin so are forgotten only when an administrator says so.

They repeat their messages whenever a query is run again, be it years later.
"""
_NAMES_IN_RECORD = 1000


class ProducerSequence:
    """The highest sequence id of one producer, and when it last used one."""

    __slots__ = ("durable_id", "incarnation", "name", "recorded_id", "used_ms")

    def __init__(self, name: str, last_id: int, used_ms: int) -> None:
        self.name = name
        self.recorded_id = last_id
        """Of the blocks that have got their positions."""
        self.durable_id = last_id
        self.used_ms = used_ms
        self.incarnation = 0


class _Forgotten(NamedTuple):
    """Blocks up to a position do not count for these producers."""

    prefix: str
    position: Position


class ProducerSequences:
    """The producers of one partition; none while deduplication is off."""

    def __init__(self) -> None:
        self.is_on = False
        self._known: dict[str, ProducerSequence] = {}
        self._by_incarnation: dict[int, ProducerSequence] = {}
        self._in_flight: dict[ProducerSequence, int] = {}  # the id before
        self._unsaved: set[ProducerSequence] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[ProducerSequence]:
        return iter(self._known.values())

    def switch(self, *, on: bool) -> None:
        """Begin to remember, or forget everything."""
        self.is_on = on
        if not on:
            self._known.clear()
            self._by_incarnation.clear()
            self._in_flight.clear()
            self._unsaved.clear()

    # ---- what is stored

    def last_id(self, name: str) -> int:
        """The highest sequence id that a producer has stored or that is being written."""
        known = self._known.get(name)
        return NO_SEQUENCE_ID if known is None else known.recorded_id

    def durable_id(self, name: str) -> int:
        """The highest sequence id that a producer has stored durably."""
        known = self._known.get(name)
        return NO_SEQUENCE_ID if known is None else known.durable_id

    def record(self, header: BlockHeader, now_ms: int) -> int:
        """A block got its position and is being written; call it in order.

        Returns the producer's highest id before.
        """
        known = self._by_incarnation.get(header.incarnation)
        if known is None:
            known = self._meet(header, now_ms)
        before = known.recorded_id
        known.used_ms = now_ms
        if takes_its_ids(header):
            if known not in self._in_flight:
                self._in_flight[known] = before
            known.recorded_id = header.last_sequence_id
        return before

    def _meet(self, header: BlockHeader, now_ms: int) -> ProducerSequence:
        """Find the producer of an incarnation, whose name stands in each of its blocks."""
        name = _metadata(header).producer_name or ""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = ProducerSequence(name, NO_SEQUENCE_ID, now_ms)
        self._by_incarnation.pop(known.incarnation, None)
        known.incarnation = header.incarnation
        self._by_incarnation[header.incarnation] = known
        return known

    def keep(self) -> None:
        """Keep all that is recorded: it is durable."""
        for known in self._in_flight:
            known.durable_id = known.recorded_id
        self._unsaved.update(self._in_flight)
        self._in_flight.clear()

    def take_back(self) -> None:
        """Take back the ids of blocks whose write failed."""
        for known, before in self._in_flight.items():
            known.recorded_id = before
        self._in_flight.clear()

    # ---- how many are remembered

    def make_room(self, name: str, limit: int, connected: Container[str]) -> str | None:
        """Forget the producer that has been away longest, if one more is to be remembered.

        Returns its name. Raises ProducerBusy if all of them are connected, or are kept.
        """
        if not self.is_on or name in self._known or len(self._known) < limit:
            return None
        away = [known for known in self if not (is_kept(known.name) or known.name in connected)]
        if not away:
            raise ProducerBusy(
                f"deduplication remembers {len(self._known)} producers, "
                f"broker_deduplication_max_number_of_producers is {limit}, and all are connected or kept: "
                "close some, have an administrator forget those of ended queries, or raise the setting"
            )
        longest = min(away, key=lambda known: known.used_ms)
        self._forget(longest)
        return longest.name

    def forget_idle(self, now_ms: int, timeout_ms: int, connected: Container[str]) -> list[str]:
        """Forget those that have been away for so long; returns their names.

        To be called now and then.
        """
        idle = []
        for known in self:
            if known.name in connected:
                known.used_ms = now_ms
            elif now_ms - known.used_ms >= timeout_ms and not is_kept(known.name):
                idle.append(known)
        for known in idle:
            self._forget(known)
        return [known.name for known in idle]

    def forget(self, prefix: str) -> list[str]:
        """Forget all whose names begin so; returns the names."""
        gone = [known for known in self if known.name.startswith(prefix)]
        for known in gone:
            self._forget(known)
        return [known.name for known in gone]

    def _forget(self, known: ProducerSequence) -> None:
        del self._known[known.name]
        self._by_incarnation.pop(known.incarnation, None)
        self._in_flight.pop(known, None)
        self._unsaved.discard(known)

    # ---- records

    def unsaved(self) -> list[SequenceIds]:
        """Records of all producers that have stored something since `saved`."""
        return _records(self._unsaved)

    def saved(self) -> None:
        """The records of `unsaved` go into the manifest; nothing was confirmed meanwhile."""
        self._unsaved.clear()

    def save_again(self, records: Iterable[SequenceIds]) -> None:
        """Write the producers of these records again: they did not get into the manifest."""
        for record in records:
            for name, *_ in record.producers:
                if (known := self._known.get(name)) is not None:
                    self._unsaved.add(known)

    def snapshot(self) -> list[SequenceIds]:
        """Records of all producers."""
        return _records(self)

    def restore(self, records: Iterable[SequenceIds]) -> None:
        """Take over records in their order: the last one of a producer counts.

        Producers whose blocks were recorded since are left as those say.
        """
        for record in records:
            for name, last_id, used_ms in record.producers:
                known = self._known.get(name)
                if known is None:
                    self._known[name] = ProducerSequence(name, last_id, used_ms)
                elif known not in self._in_flight:
                    known.recorded_id = known.durable_id = last_id
                    known.used_ms = used_ms


class SequenceReplay:
    """Finds the ids at recovery, by going through the blocks behind a checkpoint.

    `older` are the records from before that checkpoint, `newer` those from behind it, which count for
    producers whose later blocks are gone. Blocks up to `switched_on` are from before deduplication was on;
    `forgotten` are (beginning of producer names, position up to which their blocks do not count).
    """

    def __init__(
        self,
        older: list[SequenceIds],
        newer: list[SequenceIds],
        switched_on: Position | None = None,
        forgotten: Iterable[tuple[str, Position]] = (),
    ) -> None:
        self._newer = newer
        self._from = switched_on
        self._forgotten = [_Forgotten(*each) for each in forgotten]
        self._replayed = ProducerSequences()
        self._replayed.switch(on=switched_on is not None)
        self._replayed.restore(older)

    def record(self, header: BlockHeader, position: Position, now_ms: int) -> int:
        """As `ProducerSequences.record`, of a block that is stored there."""
        if self._from is None or position <= self._from:
            return NO_SEQUENCE_ID
        for prefix, up_to in self._forgotten:
            if position <= up_to and (_metadata(header).producer_name or "").startswith(prefix):
                return NO_SEQUENCE_ID
        return self._replayed.record(header, now_ms)

    def result(self) -> ProducerSequences:
        """The sequences at the end of the log."""
        sequences = self._replayed
        sequences.restore(self._newer)
        sequences.keep()
        return sequences


def takes_its_ids(header: BlockHeader) -> bool:
    """Whether the messages of a stored block count as stored.

    Those of all chunks but the last one only begin their message. The last one is stored only behind all of
    them (ADR 0088).
    """
    if not header.flags & CHUNK:
        return True
    chunk = _metadata(header).chunk
    return chunk is None or chunk.chunk_id == chunk.num_chunks - 1


def _metadata(header: BlockHeader) -> BlockMetadata:
    """Parse a block's optional fields; none if its producer has made them wrongly."""
    try:
        return header.metadata()
    except PulsarException:
        return NO_METADATA


def is_kept(name: str) -> bool:
    """Whether a producer is remembered until an administrator says otherwise."""
    return name.startswith(KEPT_PREFIX)


def _records(sequences: Iterable[ProducerSequence]) -> list[SequenceIds]:
    rows = [(known.name, known.durable_id, known.used_ms) for known in sequences]
    return [
        SequenceIds(rows[first : first + _NAMES_IN_RECORD]) for first in range(0, len(rows), _NAMES_IN_RECORD)
    ]
