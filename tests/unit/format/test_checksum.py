from __future__ import annotations

import pytest

from pulsar_ray.format.checksum import checksum


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0x2D06800538D394C2), (b"pulsar", 0x1606D1B50732EE7A), (bytes(range(256)) * 8, 0xDD420471FF96BD00)],
)
def test_stored_checksums_never_change(data: bytes, expected: int) -> None:
    assert checksum(data) == expected


def test_pieces_count_as_one() -> None:
    data = bytes(range(256)) * 8
    assert checksum(data[:5], memoryview(data)[5:700], b"", bytearray(data[700:])) == checksum(data)
