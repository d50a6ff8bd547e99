"""Publish packets and receipts in the short forms of the hot path mean what the general ones mean."""

from __future__ import annotations

import pytest

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import Packet, decode_packet
from pulsar_ray.session.packet_encoders import RECEIPT, PublishPackets, receipts_by_producer
from pulsar_ray.session.requests import Publish, Receipt, decode_request, encode_request


@pytest.mark.parametrize("producer_id", [0, 7, 2**40])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    "block", [[b""], [b"x" * 64], [b"h" * 72, b"v" * 5000, b"\0" * 3], [bytearray(9000)]]
)
def test_a_publish_packet_is_the_one_of_its_request(
    producer_id: int, waits: bool, block: list[bytes | bytearray]
) -> None:
    buffers = PublishPackets(producer_id).encode(block, waits=waits)
    assert b"".join(buffers) == b"".join(encode_request(Publish(producer_id, waits), block))


def test_a_long_block_is_passed_on_uncopied() -> None:
    payload = bytearray(100_000)
    assert PublishPackets(1).encode([b"h", payload], waits=False)[2] is payload


def test_receipts_come_in_order_under_their_producer() -> None:
    blocks = [(1, 0, 1, 5, 10), (2, 7, 1, 5, 11), (1, 1, 2, 5, 12)]
    packet = decode_packet(b"".join(encode_request(Receipt(blocks))))
    assert decode_request(packet) == Receipt(tuple(blocks))
    assert [(producer_id, list(rows)) for producer_id, rows in receipts_by_producer(packet)] == [
        (1, [blocks[0], blocks[2]]),
        (2, [blocks[1]]),
    ]


def test_one_receipt() -> None:
    packet = decode_packet(b"".join(encode_request(Receipt([(3, 4, 1, 5, 6)]))))
    assert [(producer_id, list(rows)) for producer_id, rows in receipts_by_producer(packet)] == [
        (3, [(3, 4, 1, 5, 6)])
    ]


def test_a_receipt_of_other_fields_is_refused() -> None:
    with pytest.raises(ProtocolError):
        list(receipts_by_producer(Packet(RECEIPT, ((), 1), memoryview(b""))))
