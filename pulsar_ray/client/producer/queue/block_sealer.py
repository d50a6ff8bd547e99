"""Makes numbered blocks of the messages that were added for one partition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.blocks.batch_builder import BatchBuilder, builder_for
from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.chunked_message import ChunkedMessage
from pulsar_ray.client.producer.blocks.sealed_batch import SendCallback
from pulsar_ray.client.producer.blocks.send_callbacks import completion_of
from pulsar_ray.client.producer.blocks.single_message_encoder import SingleMessageEncoder
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import (
    BlockDone,
    UnconfirmedBlock,
    UnconfirmedBlocks,
)
from pulsar_ray.client.producer.queue.send_room import SendRoom
from pulsar_ray.errors import PulsarException
from pulsar_ray.session.requests import ProducerOpened

Encode = Callable[[int, int, str, int], list[Any]]
"""encode(incarnation, entry_seq, producer name, first sequence id) gives a block's buffers."""


class BlockSealer:
    """Gives each finished block its number, encodes it, and leaves it to be confirmed.

    `stored(sequence id)` is called for each block that was stored, before its callbacks. The queue's state
    lock guards the sealer.
    """

    __slots__ = (
        "_numbers",
        "_options",
        "_partition",
        "_room",
        "_single_messages",
        "_stored",
        "_unconfirmed",
        "builder",
        "producer_name",
    )

    def __init__(
        self,
        options: ProducerOptions,
        partition: int,
        numbers: BlockNumbers,
        unconfirmed: UnconfirmedBlocks,
        room: SendRoom,
        stored: Callable[[int], None],
    ) -> None:
        self._options = options
        self._partition = partition
        self._numbers = numbers
        self._unconfirmed = unconfirmed
        self._room = room
        self._stored = stored
        self._single_messages: SingleMessageEncoder | None = None
        """For messages that need neither a batch nor compression."""
        self.builder: BatchBuilder | None = None
        """None before the partition has answered for the first time."""
        self.producer_name = options.producer_name or ""
        """Empty before the partition has answered, unless it was given."""

    def begin(self, opened: ProducerOpened, on_turn_over: Callable[[], None]) -> None:
        """Take the name and the limits of the partition's first answer."""
        options = self._options
        self.producer_name = opened.name
        self.builder = builder_for(options, opened)
        self.builder.on_turn_over = on_turn_over
        if not options.batching_enabled and not options.compression_type:
            self._single_messages = SingleMessageEncoder(opened.name, self._partition, self._stored)

    @property
    def gathered(self) -> int:
        """How many messages are added and in no block yet."""
        builder = self.builder
        return 0 if builder is None else builder.message_count

    def take_finished(self, *, seal: bool) -> None:
        """Make blocks of the finished batches; with `seal` the open one is finished too."""
        builder = self.builder
        if builder is None:
            return
        if seal:
            builder.seal()
        for batch in builder.take_sealed():
            seq = self._numbers.next_seq
            buffers = batch.encode(
                incarnation=self._numbers.incarnation,
                entry_seq=seq,
                producer_name=self.producer_name,
                codec=int(self._options.compression_type),
                schema_version=None,
            )
            self._numbers.take(batch.entries)
            block = UnconfirmedBlock(
                seq,
                batch.entries,
                batch.message_count,
                buffers,
                batch.payload_bytes,
                time.monotonic(),
                completion_of(batch, self._partition, self._stored),
            )
            self._unconfirmed.add(block)
        self._room.blocks_added()

    def add_single(self, value: bytes, callback: SendCallback | None) -> bool:
        """Make a block of one message that is nothing but a value.

        False, and nothing was added, if it has to share a block or its size has to be looked at.
        """
        single = self._single_messages
        if single is None or (sequence_id := self.builder.id_alone(value)) is None:  # type: ignore[union-attr]
            return False
        self._unconfirmed.add(single.encode(value, callback, sequence_id, self._numbers))
        return True

    def add_chunks(
        self, message: ChunkedMessage, sequence_id: int | None, callback: SendCallback | None
    ) -> None:
        """Make blocks of a message's chunks, behind all that was added before."""
        self.take_finished(seal=True)
        builder: BatchBuilder = self.builder  # type: ignore[assignment]
        taken_id = builder.take_sequence_id(sequence_id)
        blocks = message.blocks(
            self._numbers, self.producer_name, taken_id, callback, self._partition, self._stored
        )
        for block in blocks:
            self._unconfirmed.add(block)

    def add_encoded(self, encode: Encode, *, entries: int, messages: int, size: int, done: BlockDone) -> None:
        """Add a block that is encoded elsewhere, behind all that was added before."""
        builder = self.builder
        assert builder is not None
        if builder.sealed or builder.is_open:
            self.take_finished(seal=True)
        first_id = builder.next_sequence_id
        seq = self._numbers.next_seq
        buffers = encode(self._numbers.incarnation, seq, self.producer_name, first_id)
        builder.skip_sequence_ids(messages)
        self._numbers.take(entries)

        def confirmed(
            ledger_id: int, entry_id: int, error: PulsarException | None, stored_before: int
        ) -> None:
            if error is None:
                self._stored(first_id + messages - 1)
            done(ledger_id, entry_id, error, stored_before)

        self._unconfirmed.add(
            UnconfirmedBlock(seq, entries, messages, buffers, size, time.monotonic(), confirmed)
        )
