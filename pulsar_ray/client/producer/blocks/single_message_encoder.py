"""Makes single messages blocks of their own at once.

That is so without batching, while nothing else is on its way.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.sealed_batch import SendCallback
from pulsar_ray.client.producer.blocks.send_callbacks import complete_callback, fail_callbacks
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.metadata import encode_producer_name
from pulsar_ray.model.message_id import DUPLICATE_LEDGER, MessageId


class SingleMessageEncoder:
    """Makes blocks of one producer's uncompressed messages that have only a value.

    They are the blocks that a SealedBatch of the one message gives, in a third of the steps: a synchronous
    send stands still for each. `stored(sequence id)` is called before the message's callback.
    """

    __slots__ = ("_fields", "_partition", "_stored")

    def __init__(self, producer_name: str, partition: int, stored: Callable[[int], None]) -> None:
        self._fields = encode_producer_name(producer_name)
        self._partition = partition
        self._stored = stored

    def encode(
        self, value: bytes, callback: SendCallback | None, sequence_id: int, numbers: BlockNumbers
    ) -> UnconfirmedBlock:
        """The block with the next number, which it takes."""
        seq = numbers.next_seq
        buffers = encode_block(
            value,
            incarnation=numbers.incarnation,
            entry_seq=seq,
            first_sequence_id=sequence_id,
            last_sequence_id=sequence_id,
            publish_time_ms=time.time_ns() // 1_000_000,
            fields=self._fields,
        )
        numbers.next_seq = seq + 1

        def done(ledger_id: int, entry_id: int, error: PulsarException | None, _: int) -> None:
            if error is not None:
                fail_callbacks([callback], error)
                return
            self._stored(sequence_id)
            if callback is not None:
                is_stored = ledger_id != DUPLICATE_LEDGER
                stored_at = MessageId(self._partition, ledger_id, entry_id) if is_stored else MessageId()
                complete_callback(callback, stored_at)

        return UnconfirmedBlock(seq, 1, 1, buffers, len(value), time.monotonic(), done)
