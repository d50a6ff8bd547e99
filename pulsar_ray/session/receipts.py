"""Receipts as the client takes them: by the producer they are for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import Packet
from pulsar_ray.session.requests import TYPE_OF, Receipt

RECEIPT = TYPE_OF[Receipt]
_Blocks = Sequence[tuple[int, int, int, int, int]]


def receipts_by_producer(packet: Packet) -> Iterable[tuple[int, _Blocks]]:
    """Each producer's id and its rows of a Receipt packet, in order.

    Raises ProtocolError for a wrong number of fields.
    """
    if len(packet.fields) != 1:
        raise ProtocolError(f"Receipt with {len(packet.fields)} fields")
    blocks: _Blocks = packet.fields[0]
    if len(blocks) == 1:
        return ((blocks[0][0], blocks),)
    rows_of: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for row in blocks:
        rows_of.setdefault(row[0], []).append(row)
    return rows_of.items()
