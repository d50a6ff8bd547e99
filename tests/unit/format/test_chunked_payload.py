"""A message's payload out of its chunks, whole or refused."""

from __future__ import annotations

import pytest

from pulsar_ray.errors import CorruptData, InvalidMessage
from pulsar_ray.format.block import encode_block
from pulsar_ray.format.chunked_payload import ChunkedPayload
from pulsar_ray.format.compression import compress
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo
from pulsar_ray.format.payload import DecodedBlock
from pulsar_ray.model.enums import CompressionType

VALUE = b"".join(b"%d, " % number for number in range(5000))


def stored(
    number: int, part: bytes, *, uuid: str = "u", of: int = 3, total: int | None = None, codec: int = 0
) -> bytes:
    buffers = encode_block(
        part,
        incarnation=9,
        entry_seq=number,
        first_sequence_id=4,
        last_sequence_id=4,
        publish_time_ms=1,
        codec=codec,
        uncompressed_length=len(VALUE),
        metadata=BlockMetadata(
            key="k" if number + 1 == of else None,
            chunk=ChunkInfo(uuid, number, of, len(VALUE) if total is None else total),
        ),
    )
    return b"".join(buffers)


def parts(payload: bytes) -> list[bytes]:
    size = -(-len(payload) // 3)
    return [payload[start : start + size] for start in range(0, len(payload), size)]


def joined(blocks: list[bytes]) -> DecodedBlock:
    message = ChunkedPayload(sum(map(len, blocks)) + len(VALUE))
    for block in blocks:
        message.add(block)
    return message.decoded()


@pytest.mark.parametrize("codec", list(CompressionType))
def test_a_message_has_the_bytes_of_its_chunks_and_what_the_last_says(codec: CompressionType) -> None:
    payload = bytes(compress(int(codec), VALUE))
    blocks = [
        stored(number, part, codec=int(codec), total=len(payload))
        for number, part in enumerate(parts(payload))
    ]
    decoded = joined(blocks)
    assert decoded.values() == [VALUE]
    assert decoded.keys() == ["k"]
    assert decoded.sequence_ids() == [4]


def test_a_flipped_bit_is_damage() -> None:
    first, *_ = (stored(number, part) for number, part in enumerate(parts(VALUE)))
    for place in (80, 2000, len(first) - 9):
        damaged = bytearray(first)
        damaged[place] ^= 4
        with pytest.raises(CorruptData):
            ChunkedPayload(len(VALUE) * 2).add(bytes(damaged))


@pytest.mark.parametrize("numbers", [[1, 2], [0, 2], [0, 0, 1, 2], [0, 1]])
def test_missing_and_repeated_chunks_are_refused(numbers: list[int]) -> None:
    blocks = [stored(number, part) for number, part in enumerate(parts(VALUE))]
    with pytest.raises(InvalidMessage, match="chunk"):
        joined([blocks[number] for number in numbers])


def test_chunks_of_two_messages_are_refused() -> None:
    first, second, _ = parts(VALUE)
    message = ChunkedPayload(len(VALUE) * 2)
    message.add(stored(0, first))
    with pytest.raises(InvalidMessage, match="1 of u is due"):
        message.add(stored(1, second, uuid="other"))


def test_more_than_the_blocks_hold_takes_no_memory() -> None:
    with pytest.raises(InvalidMessage, match="do not hold"):
        ChunkedPayload(1000).add(stored(0, b"x" * 100, total=1 << 30))


def test_other_lengths_than_announced_are_refused() -> None:
    message = ChunkedPayload(len(VALUE) * 2)
    with pytest.raises(InvalidMessage, match="more than"):
        message.add(stored(0, VALUE, total=10))
    short = ChunkedPayload(len(VALUE) * 2)
    for number, part in enumerate(parts(VALUE)):
        short.add(stored(number, part[:-1]))
    with pytest.raises(InvalidMessage, match="3 of 3 chunks"):
        short.decoded()
