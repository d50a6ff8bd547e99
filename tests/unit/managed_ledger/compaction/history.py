"""A log of keyed messages, and what a dict has of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pulsar_ray.format.block import parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.encrypted_block import encrypted_block
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo, EncryptionInfo
from pulsar_ray.format.payload import decode_block, encode_batch, encode_rows, encode_single
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX, segment_name
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, CompactionOutcome
from pulsar_ray.managed_ledger.compaction.compactor import Compactor
from pulsar_ray.managed_ledger.compaction.latest_messages import rows_there
from pulsar_ray.managed_ledger.compaction.stored_blocks import BlockReader, SourceSegment
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.stored_blocks import IDENTITY, append_blocks, open_log, settings


class Row(NamedTuple):
    """A message: key, value, properties."""

    key: str | None
    value: bytes | None
    properties: dict[str, str] = {}  # noqa: RUF012


class History:
    """A log, and every message in it by its id (ledger, entry, batch index)."""

    def __init__(self, directory: Path) -> None:
        self.log: ManagedLedger = open_log(
            directory, config=settings(managed_ledger_max_entries_per_ledger=20)
        )
        self.seq = 0
        self.all: list[tuple[tuple[int, int, int], Row]] = []
        self.form: CompactionOutcome | None = None
        self.runs = 0

    def single(self, row: Row, codec: int = 0, *, is_encrypted: bool = False) -> None:
        metadata = BlockMetadata(producer_name="p", key=row.key, properties=row.properties or None)
        encoded = encode_single(
            row.value, incarnation=5, entry_seq=self.seq, sequence_id=self.seq, publish_time_ms=self.seq,
            metadata=metadata, codec=codec,
        )  # fmt: skip
        encoded = encrypted_block(encoded, _reversed) if is_encrypted else encoded
        self._append(encoded, [row], of_batch=False, entries=1)

    def batch(
        self, rows: Sequence[Row], *, row_is_entry: bool = False, codec: int = 0, is_encrypted: bool = False
    ) -> None:
        payload, columns = encode_rows(
            [row.value for row in rows],
            [row.key for row in rows],
            None,
            [row.properties for row in rows],
        )
        encoded = encode_batch(
            payload, columns, message_count=len(rows), incarnation=5, entry_seq=self.seq,
            first_sequence_id=self.seq, last_sequence_id=self.seq + len(rows) - 1, publish_time_ms=self.seq,
            row_is_entry=row_is_entry, codec=codec,
            metadata=BlockMetadata(
                producer_name="p", schema_version=b"\x07", key=None if row_is_entry else rows[0].key
            ),
        )  # fmt: skip
        encoded = encrypted_block(encoded, _reversed) if is_encrypted else encoded
        self._append(encoded, rows, of_batch=not row_is_entry, entries=len(rows) if row_is_entry else 1)

    def chunk(self, uuid: str, number: int, count: int, key: str | None) -> None:
        metadata = BlockMetadata(key=key, chunk=ChunkInfo(uuid, number, count, 4 * count))
        encoded = encode_single(
            b"part", incarnation=9, entry_seq=self.seq, sequence_id=1, publish_time_ms=1, metadata=metadata
        )
        self._append(encoded, [Row(f"{uuid}/{number}", b"part")], of_batch=False, entries=1)

    def _append(self, encoded: Any, rows: Sequence[Row], *, of_batch: bool, entries: int) -> None:
        header = parse_block_header(b"".join(map(bytes, encoded)))
        position = append_blocks(self.log, [(header, encoded)]).positions[0]
        for number, row in enumerate(rows):
            entry = position.entry_id + (0 if of_batch or entries == 1 else number)
            self.all.append(((position.ledger_id, entry, number if of_batch else -1), row))
        self.seq += entries

    def order(self, max_key_bytes: int = 1 << 20, *, retains: bool = False) -> CompactionOrder:
        self.runs += 1
        form, directory = self.form, self.log.directory
        behind = EARLIEST if form is None else form.horizon
        before = (
            []
            if form is None
            else [
                SourceSegment(
                    kept.ledger_id,
                    COMPACTED_INDEX + form.number,
                    str(directory / segment_name(kept.ledger_id, COMPACTED_INDEX + form.number)),
                    kept.end_offset,
                )
                for kept in form.segments
            ]
        )
        log = [
            SourceSegment(s.ledger_id, s.segment_index, str(s.path), s.end_offset)
            for s in self.log.segments()
            if Position(s.ledger_id, s.last_entry_id) > behind
        ]
        horizon = self.log.readable_position
        return CompactionOrder(
            str(directory), self.runs, 1, IDENTITY.topic, -1, 1, [*before, *log], behind, horizon, retains,
            max_key_bytes,
        )  # fmt: skip

    def compact(self, max_key_bytes: int = 1 << 20, *, retains: bool = False) -> CompactionOutcome:
        self.form = Compactor(self.order(max_key_bytes, retains=retains)).run()
        return self.form

    def kept(self) -> list[tuple[tuple[int, int, int], Row]]:
        """What the form has, read back."""
        form = self.form
        assert form is not None
        found = []
        segments = [
            SourceSegment(
                kept.ledger_id,
                COMPACTED_INDEX + form.number,
                str(self.log.directory / segment_name(kept.ledger_id, COMPACTED_INDEX + form.number)),
                kept.end_offset,
            )
            for kept in form.segments
        ]
        for blocks in BlockReader(segments, EARLIEST, form.horizon).read():
            for block in blocks:
                decoded = decode_block(block.data, decrypt=lambda _, payload: bytes(payload)[::-1])
                there = rows_there(decoded.metadata.removed_rows, decoded.message_count)
                keys = decoded.keys() or [None] * decoded.message_count
                properties = decoded.properties() or [{}] * decoded.message_count
                for number in range(decoded.message_count):
                    if not there[number]:
                        assert decoded.values()[number] is None, "nothing of a removed row is left"
                        continue
                    entry = block.entry_id + (number if decoded.header.row_is_entry else 0)
                    at = (block.ledger_id, entry, number if decoded.header.batch_size else -1)
                    chunk = decoded.metadata.chunk
                    key = keys[number] if chunk is None else f"{chunk.uuid}/{chunk.chunk_id}"
                    found.append((at, Row(key, decoded.values()[number], properties[number])))
        return found

    def expected(self, *, retains: bool = False) -> list[tuple[tuple[int, int, int], Row]]:
        """What a dict has of the whole history."""
        latest = {row.key: (at, row) for at, row in self.all if row.key}
        kept = [(at, row) for at, row in latest.values() if row.value]
        if retains:
            kept += [(at, row) for at, row in self.all if not row.key]
        return sorted(kept, key=lambda each: each[0])


def _reversed(payload: Buffer) -> tuple[EncryptionInfo, bytes]:
    """Encrypt so that a test can see through it."""
    return EncryptionInfo("reversed", b"", ()), bytes(payload)[::-1]
