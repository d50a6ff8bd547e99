"""Packets that go out for every commit have the bytes that any other way of encoding them gives."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import MAX_FIELDS_BYTES
from pulsar_ray.session.packet_encoders import PacketEncoder
from pulsar_ray.session.requests import Advanced, Receipt, encode_request

SEED = 11


def test_the_bytes_are_those_of_encode_request() -> None:
    print(f"seed {SEED}")
    some = random.Random(SEED)
    receipts, news = PacketEncoder(Receipt), PacketEncoder(Advanced)
    for _ in range(200):
        rows = [
            (some.randrange(300), some.getrandbits(some.randrange(1, 65)), 1, some.getrandbits(63), -1)
            for _ in range(some.randrange(5))
        ]
        assert receipts.encode((rows,)) == encode_request(Receipt(rows))
        frames = [(some.getrandbits(40), 0, some.getrandbits(30), some.randbytes(80)) for _ in rows]
        tail = (1, 2, "a/b.seg", 3, 4, 5) if some.random() < 0.5 else None
        segments = [(1, 0, "é.seg", 0, 9, 8)] if some.random() < 0.5 else None
        told = Advanced(3, 1 << 40, 7, 1 << 39, 0, segments, tail, 1 << 40, 6, frames)
        assert news.encode(tuple(told)) == encode_request(told)


def test_what_cannot_be_sent_is_refused_and_spoils_nothing() -> None:
    receipts = PacketEncoder(Receipt)
    with pytest.raises(ProtocolError):
        receipts.encode(([(1, 2, 3, 4, 1 << 60)] * (MAX_FIELDS_BYTES // 8),))
    with pytest.raises(OverflowError):
        receipts.encode(([(1, 2, 3, 4, 1 << 64)],))
    assert receipts.encode(([(1, 2, 3, 4, 5)],)) == encode_request(Receipt([(1, 2, 3, 4, 5)]))
