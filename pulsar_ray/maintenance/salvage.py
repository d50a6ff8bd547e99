"""Finds what an ended store has on its disk and never shipped; reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData, NotAllowedError, NotOurDataDirectory, PulsarException
from pulsar_ray.format.block import CHUNK, ENCRYPTED
from pulsar_ray.format.chunked_payload import ChunkedPayload
from pulsar_ray.format.payload import DecodedBlock, decode_block
from pulsar_ray.journal.at_once import Reader
from pulsar_ray.journal.partition_state import PartitionState
from pulsar_ray.journal.reading import stores_in_bucket, walk
from pulsar_ray.journal.storage.object_store import ObjectStore
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.ledger.recovery import sound_end
from pulsar_ray.managed_ledger.compaction.stored_blocks import BlockReader, SourceSegment, StoredBlock
from pulsar_ray.managed_ledger.log.manifest.manifest_log import ManifestContent, read_manifest
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted
from pulsar_ray.managed_ledger.store.store_identity import read_identity
from pulsar_ray.model.message_id import EARLIEST, LATEST

OPEN_CHUNKED = 16
"""Of more messages in chunks at a time the oldest is given up."""


class Part(NamedTuple):
    """A segment, and up to where it was shipped."""

    segment: SourceSegment
    shipped: int


class Unshipped(NamedTuple):
    """The messages of one partition that only this directory has.

    Ids are ledger:entry of the first and last block, times are of publishing in ms since 1970. `damage` says
    why not all that there is could be read.
    """

    topic: str
    partition: int
    parts: tuple[Part, ...]
    messages: int = 0
    first_id: str = ""
    last_id: str = ""
    first_ms: int = 0
    last_ms: int = 0
    damage: str = ""


class Message(NamedTuple):
    """One stored block, or a message put together from its chunks, and its place."""

    decoded: DecodedBlock
    ledger_id: int
    entry_id: int


def find_unshipped(
    directory: Path, store: ObjectStore, progress: Callable[[int], None] = lambda _: None
) -> list[Unshipped]:
    """Return by partition what an ended store's disk has and its journal lacks.

    A write that nobody was promised may be among it. Partitions that were never shipped are there as a whole.
    `progress` is called with 1 for each partition. Raises NotOurDataDirectory, NotAllowedError for a store
    that was not ended, and RemoteStoreUnavailable.
    """
    identity = read_identity(directory)
    if identity is None:
        raise NotOurDataDirectory(f"{directory} is no store: it has no store.json")
    shipped = _shipped(Reader(store), identity.store_id)
    found = []
    for number in partition_numbers(directory / "p"):
        unshipped = _of_partition(directory / "p" / str(number), shipped.get(str(number)))
        if unshipped is not None:
            found.append(unshipped)
        progress(1)
    return found


def _shipped(reader: Reader, store_id: str) -> dict[str, PartitionState]:
    if store_id not in reader.run(stores_in_bucket()):
        raise NotAllowedError(f"store {store_id} never shipped there: give the --url that it shipped to")
    found = reader.run(walk(store_id))
    if not found.is_sealed:
        raise NotAllowedError(
            f"store {store_id} was not ended: start its node, which ships the rest by itself, or end it with "
            "`pulsar-ray stores forget`"
        )
    return found.states


def _of_partition(directory: Path, state: PartitionState | None) -> Unshipped | None:
    try:
        content = read_manifest(directory)
        if content is None:
            return None
        take_unlisted(content)
    except (PulsarException, OSError) as error:
        return Unshipped(f"partition {directory.name}", -1, (), damage=f"its manifest: {error}")
    identity = content.manifest.identity
    lengths = {} if state is None else {name: file.length for name, file in state.files.items()}
    parts = tuple(_parts(content, lengths))
    if not parts:
        return None
    return _counted(Unshipped(identity.topic, identity.partition, parts))


def _parts(content: ManifestContent, lengths: dict[str, int]) -> Iterator[Part]:
    for _, ledger in sorted(content.manifest.ledgers.items()):
        for segment in ledger.segments:
            end = segment.end_offset
            if ledger.is_open and segment is ledger.segments[-1]:
                try:
                    end = sound_end(segment)
                except SegmentGone:
                    continue
            shipped = lengths.get(segment.path.name, 0)
            if end > shipped:
                source = SourceSegment(segment.ledger_id, segment.segment_index, str(segment.path), end)
                yield Part(source, shipped)


def _counted(found: Unshipped) -> Unshipped | None:
    messages, damage = 0, ""
    first: StoredBlock | None = None
    last: StoredBlock | None = None
    try:
        for block in _blocks(found):
            chunk = block.header.metadata().chunk
            messages += block.header.message_count if chunk is None or chunk.chunk_id == 0 else 0
            first, last = first or block, block
    except (PulsarException, OSError, ValueError) as error:
        damage = str(error)
    if first is None or last is None:
        return found._replace(damage=damage) if damage else None
    return found._replace(
        messages=messages,
        first_id=f"{first.ledger_id}:{first.entry_id}",
        last_id=f"{last.ledger_id}:{last.entry_id + last.header.entries - 1}",
        first_ms=first.header.publish_time_ms,
        last_ms=last.header.publish_time_ms,
        damage=damage,
    )


def _blocks(found: Unshipped) -> Iterator[StoredBlock]:
    for segment, shipped in found.parts:
        for blocks in BlockReader([segment], EARLIEST, LATEST).read():
            for block in blocks:
                # Of a frame that was cut in the middle, a successor has nothing.
                if block.frame_offset + block.frame.total_length > shipped:
                    yield block


def unshipped_messages(found: Unshipped, left_out: Callable[[int], None]) -> Iterator[Message]:
    """Yield the messages of a partition, in order, up to the first damage.

    A message whose first chunks were shipped is left out: its other chunks are of no use without them. So are
    encrypted ones, which `left_out` counts.
    """
    chunked: dict[str, ChunkedPayload] = {}
    try:
        for block in _blocks(found):
            chunk = block.header.metadata().chunk if block.header.flags & CHUNK else None
            if block.header.flags & ENCRYPTED:
                is_part = chunk is not None and chunk.chunk_id < chunk.num_chunks - 1
                left_out(0 if is_part else block.header.message_count)
                continue
            if chunk is None:
                yield Message(decode_block(block.data), block.ledger_id, block.entry_id)
                continue
            if chunk.chunk_id == 0:
                if len(chunked) >= OPEN_CHUNKED:
                    chunked.pop(next(iter(chunked)))
                chunked[chunk.uuid] = ChunkedPayload(chunk.total_size)
            if (payload := chunked.get(chunk.uuid)) is None:
                continue
            payload.add(block.data)
            if chunk.chunk_id == chunk.num_chunks - 1:
                yield Message(chunked.pop(chunk.uuid).decoded(), block.ledger_id, block.entry_id)
    except (CorruptData, SegmentGone):
        return
