"""Sending a consumer's grants: as places in files, or with their bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.managed_ledger.log.trimmed_ledgers import last_trimmed_ledger
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.session_table import Carrier, Session

MAX_GRANTS_PER_PACKET = 512
MAX_CHUNKS_PER_PACKET = 4096
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_UNSENT_BYTES = 4 * 1024 * 1024


class DeliverySender(Protocol):
    """Puts the deliveries of one consumer on its session's carrier, in order."""

    @property
    def has_unsent(self) -> bool:
        """Whether granted deliveries are not on the carrier yet."""

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        """Send grants behind all that were sent before."""

    def drop_below(self, generation: int) -> None:
        """Forget unsent deliveries of lower generations."""

    def end(self) -> None:
        """Forget unsent deliveries, and send nothing more."""


class PlaceSender:
    """Sends the places of blocks to a consumer that reads the files; nothing waits here."""

    has_unsent = False

    def __init__(self, session: Session, encoder: DeliverEncoder) -> None:
        self._session = session
        self._encode = encoder.encode
        self._encode_chunks = encoder.encode_chunks

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        for start in range(0, len(grants), MAX_GRANTS_PER_PACKET):
            part = grants[start : start + MAX_GRANTS_PER_PACKET]
            for grant in part:
                if grant.block.chunks:
                    self._send_chunks(generation, grant)
            self._session.send(self._encode(generation, part))

    def _send_chunks(self, generation: int, grant: Grant) -> None:
        chunks = grant.block.chunks
        for index in range(0, len(chunks), MAX_CHUNKS_PER_PACKET):
            part = chunks[index : index + MAX_CHUNKS_PER_PACKET]
            self._session.send(self._encode_chunks(generation, grant, index, part))

    def drop_below(self, generation: int) -> None:
        """Drop nothing: all is sent."""

    def end(self) -> None:
        """Drop nothing: all is sent."""


class BytesSender:
    """Reads blocks from their files and sends the bytes.

    Grants wait, unread, while the carrier is busy.
    """

    def __init__(
        self,
        session: Session,
        encoder: DeliverEncoder,
        directory: str,
        loop: asyncio.AbstractEventLoop,
        disk: DiskThread,
    ) -> None:
        self._session = session
        self._encode = encoder.encode
        self._encode_chunks = encoder.encode_chunks
        self._directory = directory
        self._loop = loop
        self._disk = disk
        self._waiting: deque[tuple[int, Grant]] = deque()
        self._is_sending = False
        self._is_ended = False
        self._single_parts = 0

    @property
    def has_unsent(self) -> bool:
        return self._is_sending or bool(self._waiting)

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        self._waiting.extend((generation, grant) for grant in grants)
        if not self._is_sending:
            self._is_sending = True
            task = self._loop.create_task(self._send_waiting())
            task.add_done_callback(self._raise_uncaught)

    def drop_below(self, generation: int) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] >= generation)

    def end(self) -> None:
        self._is_ended = True
        self._waiting.clear()

    def _raise_uncaught(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "sending deliveries failed", "exception": error})

    async def _send_waiting(self) -> None:
        try:
            await self._send_bytes()
        finally:
            self._is_sending = False

    async def _send_bytes(self) -> None:
        while self._waiting:
            carrier = self._session.carrier
            if carrier is None or self._is_ended:
                self._waiting.clear()
                return
            if carrier.unsent_bytes > MAX_UNSENT_BYTES:
                await carrier.drained()
                if self._session.carrier is not carrier or not self._waiting:
                    continue
            generation, part = self._next_part()
            try:
                if part[0].block.chunks:
                    await self._send_chunks(carrier, generation, part[0])
                refs = [grant.block for grant in part]
                body = await self._disk.run(lambda refs=refs: _read(self._directory, refs))  # type: ignore[misc]
            except PulsarException as error:
                if len(part) > 1:
                    # One of them cannot be read: each goes alone, so that the others arrive.
                    self._single_parts = len(part)
                    self._waiting.extendleft((generation, grant) for grant in reversed(part))
                    continue
                # The consumer gets the place and meets the same error, typed, itself.
                body = []
                if isinstance(error, SegmentGone) and await self._disk.run(partial(self._is_trimmed, part)):
                    part = [_without_bytes(grant) for grant in part]
            if self._session.carrier is carrier and not self._is_ended:
                self._session.send(self._encode(generation, part, body))

    def _is_trimmed(self, part: Sequence[Grant]) -> bool:
        last = last_trimmed_ledger(Path(self._directory))
        return all(grant.block.ledger_id <= last for grant in part)

    async def _send_chunks(self, carrier: Carrier, generation: int, grant: Grant) -> None:
        """Send the chunks before a message's last one, a few MiB at a time."""
        chunks = grant.block.chunks
        index = 0
        while index < len(chunks):
            if carrier.unsent_bytes > MAX_UNSENT_BYTES:
                await carrier.drained()
            if self._session.carrier is not carrier or self._is_ended:
                return
            size, end = chunks[index].length, index + 1
            while end < len(chunks) and size + chunks[end].length <= MAX_BODY_BYTES:
                size += chunks[end].length
                end += 1
            part = chunks[index:end]
            body = await self._disk.run(lambda part=part: _read(self._directory, part))  # type: ignore[misc]
            if self._session.carrier is carrier and not self._is_ended:
                self._session.send(self._encode_chunks(generation, grant, index, part, body))
            index = end

    def _next_part(self) -> tuple[int, list[Grant]]:
        generation, first = self._waiting.popleft()
        part = [first]
        size = first.block.length
        if self._single_parts:
            self._single_parts -= 1
            return generation, part
        if first.block.chunks:
            return generation, part
        while self._waiting and len(part) < MAX_GRANTS_PER_PACKET:
            following_generation, grant = self._waiting[0]
            size += grant.block.length
            is_alone = size > MAX_BODY_BYTES or grant.block.chunks
            if following_generation != generation or is_alone:
                break
            part.append(grant)
            self._waiting.popleft()
        return generation, part


def _without_bytes(grant: Grant) -> Grant:
    """Return the grant of a trimmed block: there is nothing to read."""
    return grant._replace(block=grant.block._replace(length=0))


def _read(directory: str, refs: Sequence[BlockRef]) -> list[bytes]:
    readers: dict[tuple[int, int], SegmentReader] = {}
    try:
        body = []
        for ref in refs:
            key = (ref.ledger_id, ref.segment_index)
            if key not in readers:
                readers[key] = SegmentReader(Path(directory) / segment_name(*key))
            body.append(readers[key].read_block(ref.offset, ref.length))
        return body
    finally:
        for reader in readers.values():
            reader.close()
