"""What goes out for grants is the Deliver packet of the protocol."""

from __future__ import annotations

import random

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.model.row_sets import from_wire, span, to_wire
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.requests import Deliver, decode_request, encode_request


def grant_of(rng: random.Random, number: int) -> Grant:
    ref = BlockRef(7, 2, 4096 * number, 256, 100 * number, 100, 100, row_is_entry=True)
    rows = rng.choice((span(0, 100), span(3, 50), 1, rng.getrandbits(100) | 1, span(0, 9) | span(90, 91)))
    failures = ((0, 2, 1), (5, 6, 3)) if number % 3 == 0 else ()
    return Grant(1, number, ref, rows, rng.randint(0, 3), number % 5 == 0, failures)


def test_the_bytes_are_those_of_the_request() -> None:
    print("seed", 1)
    rng = random.Random(1)
    encoder = DeliverEncoder(5, 3)
    for body in ((), (b"first", memoryview(b"second"))):
        grants = [grant_of(rng, number) for number in range(1, 40)]
        rows = [(g.number, (*g.block[:6], to_wire(g.row_set), g.redelivery_count, 100)) for g in grants]
        failures = [(grant.number, grant.row_failures) for grant in grants if grant.row_failures]
        suspects = [grant.number for grant in grants if grant.is_suspect]
        expected = encode_request(Deliver(5, 3, 1 << 32, rows, failures, suspects), body)
        assert encoder.encode(1 << 32, grants, body) == expected
        read = decode_request(decode_packet(b"".join(expected)))
        assert isinstance(read, Deliver)
        assert [from_wire(wire[6]) for _, wire in read.grants] == [grant.row_set for grant in grants]
