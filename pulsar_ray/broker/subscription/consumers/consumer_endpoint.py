"""A connected consumer at its dispatcher: grants on their way out, as places in files or as bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.session.deliver_packets import DeliverEncoder
from pulsar_ray.session.requests import Reset, encode_request
from pulsar_ray.session.session_table import Session

MAX_GRANTS_PER_PACKET = 512
MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_UNSENT_BYTES = 4 * 1024 * 1024
RETRY_S = 0.01


class QueueReset(NamedTuple):
    """What a consumer is told when what it has comes again; the fields of `Reset`."""

    incarnation: int
    generation: int
    is_seek: bool
    last_number: int
    granted: int
    start: list[int] | None = None


class ConsumerEndpoint:
    """Sends one consumer's deliveries in order. Bytes wait, unread, while the carrier is busy."""

    def __init__(
        self,
        session: Session,
        consumer_id: int,
        incarnation: int,
        name: str,
        directory: str,
        epoch: int,
        loop: asyncio.AbstractEventLoop,
        disk: DiskThread,
        *,
        reads_files: bool,
    ) -> None:
        self.session = session
        self.consumer_id = consumer_id
        self.incarnation = incarnation
        self.name = name
        self.numbering = epoch
        self._directory = directory
        self._encode_deliver = DeliverEncoder(consumer_id, epoch).encode
        self._loop = loop
        self._disk = disk
        self.reads_files = reads_files
        self._waiting: deque[tuple[int, Grant]] = deque()
        self._is_sending = False
        self._is_retired = False
        self._early: list[tuple[int, Sequence[Grant]]] | None = []
        self._single_parts = 0
        self.subscription = ""
        self.metadata: Mapping[str, str] = {}
        self._told_active: bool | None = None
        self.is_held = True
        """Whether its subscription holds entries, so that a segment that is gone is damage."""

    def open(self, again: Sequence[Grant], generation: int) -> None:
        """The client was told that it is open: send what it must get once more, then what was granted
        meanwhile.
        """
        early, self._early = self._early or [], None
        self.deliver(again, generation)
        for of_generation, grants in early:
            self.deliver(grants, of_generation)

    def retire(self) -> None:
        """The same consumer attached again: what waits here is sent by its new endpoint."""
        self._is_retired = True
        self._waiting.clear()

    def deliver(self, grants: Sequence[Grant], generation: int) -> None:
        """Send grants after all sent before; until `open` they wait, for a client takes numbers in order
        only.
        """
        if self._early is not None:
            self._early.append((generation, grants))
            return
        if not self.reads_files:
            self._waiting.extend((generation, grant) for grant in grants)
            if not self._is_sending:
                self._is_sending = True
                task = self._loop.create_task(self._send_waiting())
                task.add_done_callback(self._raise_uncaught)
            return
        for start in range(0, len(grants), MAX_GRANTS_PER_PACKET):
            part = grants[start : start + MAX_GRANTS_PER_PACKET]
            self.session.send(self._encode_deliver(generation, part))

    @property
    def has_unsent(self) -> bool:
        """Whether deliveries were granted that are not on the carrier yet."""
        return self._is_sending or bool(self._waiting) or bool(self._early)

    def drop_queue(self, drop: QueueReset) -> None:
        """Tell the consumer to drop what it has of lower generations; what still waits here goes too."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] >= drop.generation)
        if self._early is not None:
            self._early = [early for early in self._early if early[0] >= drop.generation]
        _, generation, is_seek, last_number, granted, start = drop
        self.session.send(
            encode_request(Reset(self.consumer_id, generation, is_seek, last_number, granted, start=start))
        )

    def tell_active(self, is_active: bool, generation: int) -> None:
        """Tell the consumer, once it is open and unless it knows, whether it is the active one."""
        if self._early is None and is_active is not self._told_active:
            self._told_active = is_active
            self.session.send(encode_request(Reset(self.consumer_id, generation, is_active=is_active)))

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
            carrier = self.session.carrier
            if carrier is None or self._is_retired:
                self._waiting.clear()
                return
            if carrier.unsent_bytes > MAX_UNSENT_BYTES:
                await asyncio.sleep(RETRY_S)
                continue
            generation, part = self._next_part()
            try:
                body = await self._disk.run(lambda part=part: _read(self._directory, part))  # type: ignore[misc]
            except PulsarException as error:
                if len(part) > 1:
                    # One of them cannot be read: each goes alone, so that the others arrive.
                    self._single_parts = len(part)
                    self._waiting.extendleft((generation, grant) for grant in reversed(part))
                    continue
                # The consumer is told the place and meets the same error, typed, itself.
                body = []
                if isinstance(error, SegmentGone) and not self.is_held:
                    part = [_without_bytes(grant) for grant in part]
            if self.session.carrier is carrier and not self._is_retired:
                self.session.send(self._encode_deliver(generation, part, body))

    def _next_part(self) -> tuple[int, list[Grant]]:
        generation, first = self._waiting.popleft()
        part = [first]
        size = first.block.length
        if self._single_parts:
            self._single_parts -= 1
            return generation, part
        while self._waiting and len(part) < MAX_GRANTS_PER_PACKET:
            following_generation, grant = self._waiting[0]
            size += grant.block.length
            if following_generation != generation or size > MAX_BODY_BYTES:
                break
            part.append(grant)
            self._waiting.popleft()
        return generation, part


def _without_bytes(grant: Grant) -> Grant:
    """A grant of what was trimmed: there is nothing to read."""
    return grant._replace(block=grant.block._replace(length=0))


def _read(directory: str, grants: Sequence[Grant]) -> list[bytes]:
    readers: dict[tuple[int, int], SegmentReader] = {}
    try:
        body = []
        for grant in grants:
            ref = grant.block
            key = (ref.ledger_id, ref.segment_index)
            if key not in readers:
                readers[key] = SegmentReader(Path(directory) / segment_name(*key))
            body.append(readers[key].read_block(ref.offset, ref.length))
        return body
    finally:
        for reader in readers.values():
            reader.close()
