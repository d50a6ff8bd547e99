"""Deliver packets, one for each delivery: the bytes are those of `encode_request(Deliver(...), body)`."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.model.row_sets import to_wire
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.packet_encoder import PacketEncoder
from pulsar_ray.session.requests import Deliver
from pulsar_ray.session.requests import Grant as WireGrant


class DeliverEncoder:
    """Writes one consumer's grants straight into packets."""

    __slots__ = ("_consumer_id", "_encode", "_epoch")

    def __init__(self, consumer_id: int, epoch: int) -> None:
        self._consumer_id = consumer_id
        self._epoch = epoch
        self._encode = PacketEncoder(Deliver).encode

    def encode(self, generation: int, grants: Sequence[Grant], body: Sequence[Buffer] = ()) -> list[Buffer]:
        """The packet's buffers; `body` is there for consumers that cannot read the files."""
        described = [_described(grant) for grant in grants]
        return self._encode((self._consumer_id, self._epoch, generation, described), body)


def _described(grant: Grant) -> tuple[int, WireGrant]:
    _, number, block, row_set, redelivery_count, _, _ = grant
    ledger_id, segment_index, offset, length, first_entry_id, entries, messages, _ = block
    rows = to_wire(row_set)
    return number, (
        ledger_id,
        segment_index,
        offset,
        length,
        first_entry_id,
        entries,
        rows,
        redelivery_count,
        messages,
    )
