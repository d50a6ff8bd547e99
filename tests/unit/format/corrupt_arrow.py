"""Decode Arrow payloads with every small damage under a valid checksum; run in a process of its own.

Prints how many were refused and how many decoded. A crash of the interpreter shows as the exit code.
"""

from __future__ import annotations

import resource
import struct
import sys
from collections.abc import Iterator

from pulsar_ray.errors import InvalidMessage
from pulsar_ray.format.arrow_payload import encode_rows
from pulsar_ray.format.payload import decode_block, encode_batch

ROWS = 3
_EXTREMES_32 = (1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000)
_EXTREMES_64 = (1, 1 << 31, 1 << 40, (1 << 62) + 8, (1 << 63) - 1, (1 << 64) - 1)


def samples() -> Iterator[tuple[bytes, int]]:
    """Yield small payloads that together have each column, with and without nulls."""
    yield tuple_of(encode_rows([b"a", b"", b"ccc"]))
    yield tuple_of(
        encode_rows(
            [b"a", None, b"ccc"],
            ["k", None, "kkk"],
            [None, "o", "o\u00e9"],
            [{"p": "q", "r": "s"}, None, {"t": ""}],
            [1, None, 3],
            [5, 6, 9],
        )
    )


def tuple_of(encoded: tuple[bytes | bytearray | memoryview, int]) -> tuple[bytes, int]:
    """Return the payload as plain bytes."""
    return bytes(encoded[0]), encoded[1]


def damaged(payload: bytes) -> Iterator[bytes]:
    """Yield the payload with each bit flipped, each word made extreme, and cut off at each place."""
    for place in range(len(payload)):
        for bit in range(8):
            yield payload[:place] + bytes([payload[place] ^ 1 << bit]) + payload[place + 1 :]
        yield payload[:place]
    for place in range(0, len(payload) - 3, 4):
        for word in _EXTREMES_32:
            yield payload[:place] + struct.pack("<I", word) + payload[place + 4 :]
    for place in range(0, len(payload) - 7, 4):
        for word in _EXTREMES_64:
            yield payload[:place] + struct.pack("<Q", word) + payload[place + 8 :]


def read_everything(payload: bytes, columns: int) -> None:
    """Decode a block around the payload and make every Python object it holds."""
    block = b"".join(
        encode_batch(
            payload,
            columns,
            message_count=ROWS,
            incarnation=1,
            entry_seq=0,
            first_sequence_id=0,
            last_sequence_id=ROWS - 1,
            publish_time_ms=0,
        )
    )
    decoded = decode_block(block)
    for column in (
        decoded.values(),
        decoded.keys(),
        decoded.ordering_keys(),
        decoded.properties(),
        decoded.event_times(),
        decoded.sequence_ids(),
    ):
        if column is not None and len(column) != ROWS:
            raise AssertionError(f"{len(column)} rows decoded instead of {ROWS}")
    if decoded.record_batch().num_rows != ROWS:
        raise AssertionError("record batch has another number of rows")
    decoded.record_batch().to_pylist()


def is_readable(payload: bytes, columns: int) -> bool:
    """Whether the payload decodes; an error other than the promised one passes through."""
    try:
        read_everything(payload, columns)
    except InvalidMessage:
        return False
    return True


def main() -> None:
    """Try them all with little memory, so that an announced terabyte is not simply granted."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    refused = decoded = 0
    for payload, columns in samples():
        for bad in damaged(payload):
            if is_readable(bad, columns):
                decoded += 1
            else:
                refused += 1
    sys.stdout.write(f"{refused} {decoded}\n")


if __name__ == "__main__":
    main()
