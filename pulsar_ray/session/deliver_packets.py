"""Deliver packets, one for each delivery: the bytes are those of `encode_request(Deliver(...), body)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.model.row_sets import to_wire
from pulsar_ray.session.packet import Buffer, packet_head, total_bytes
from pulsar_ray.session.requests import TYPE_OF, Deliver
from pulsar_ray.session.requests import Grant as WireGrant

_DELIVER = TYPE_OF[Deliver]
# Making a packer costs more than packing one grant does.
_pack: Callable[[Any], bytes] = msgpack.Packer().pack


def encode_deliver(
    consumer_id: int, epoch: int, generation: int, grants: Sequence[Grant], body: Sequence[Buffer] = ()
) -> list[Buffer]:
    """The packet's buffers; `body` is there for consumers that cannot read the files."""
    packed = _pack((consumer_id, epoch, generation, [_described(grant) for grant in grants]))
    return [packet_head(_DELIVER, packed, total_bytes(body)), *body]


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
