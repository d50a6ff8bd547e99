"""An encrypted block keeps its header, and what it is for those who have no key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pulsar_ray.errors import CryptoError, InvalidMessage
from pulsar_ray.format.block import CHUNK, ENCRYPTED, BlockHeader, encode_block, parse_block_header
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.chunked_payload import ChunkedPayload
from pulsar_ray.format.encrypted_block import TAG_BYTES, encrypted_block, undecrypted
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo, EncryptionInfo
from pulsar_ray.format.payload import decode_block, encode_batch, encode_rows, encode_single

INFO = EncryptionInfo("", b"nonce", (("app", b"wrapped", {}),))
PLACE: dict[str, Any] = {"incarnation": 7, "entry_seq": 3, "publish_time_ms": 5}


def encrypt(payload: Buffer) -> tuple[EncryptionInfo, bytes]:
    return INFO, bytes(byte ^ 0xFF for byte in bytes(payload)) + bytes(TAG_BYTES)


def decrypt(info: EncryptionInfo, payload: Buffer) -> bytes:
    assert info == INFO
    return bytes(byte ^ 0xFF for byte in bytes(payload)[:-TAG_BYTES])


def single(value: bytes | None, codec: int = 0) -> list[Buffer]:
    metadata = BlockMetadata(producer_name="p", key="k", properties={"a": "b"})
    return encode_single(value, sequence_id=9, codec=codec, metadata=metadata, **PLACE)


def batch(codec: int = 0, *, row_is_entry: bool = False) -> list[Buffer]:
    payload, columns = encode_rows([b"one" * 9, None, b"three" * 9], keys=["a", None, "c"])
    return encode_batch(
        payload,
        columns,
        message_count=3,
        first_sequence_id=4,
        last_sequence_id=6,
        codec=codec,
        row_is_entry=row_is_entry,
        metadata=BlockMetadata(producer_name="p", key="a"),
        **PLACE,
    )


def fields(header: BlockHeader) -> dict[str, Any]:
    """The fields of a header but for lengths, checksum and flags."""
    others = {"flags", "checksum", "header_length", "payload_length", "total_length", "_fields"}
    return {name: getattr(header, name) for name in BlockHeader.__slots__ if name not in others}


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("make", [lambda codec: single(b"v" * 9000, codec), batch])
def test_a_block_is_read_by_those_who_decrypt_it(make: Any, codec: int) -> None:
    plain = b"".join(make(codec))
    block = b"".join(encrypted_block([plain], encrypt))
    before, header = parse_block_header(plain), parse_block_header(block)
    assert fields(header) == fields(before)
    assert header.flags == before.flags | ENCRYPTED
    assert header.metadata() == before.metadata()._replace(encryption=INFO)
    assert header.payload_length == before.payload_length + TAG_BYTES
    found, expected = decode_block(block, decrypt=decrypt), decode_block(plain)
    assert (found.values(), found.keys(), found.properties()) == (
        expected.values(),
        expected.keys(),
        expected.properties(),
    )
    with pytest.raises(CryptoError, match="'app'"):
        decode_block(block)


def test_a_tombstone_stays_what_everybody_sees() -> None:
    buffers = single(None)
    assert encrypted_block(buffers, encrypt) == buffers


@pytest.mark.parametrize("row_is_entry", [False, True])
def test_undecrypted_it_is_one_message(row_is_entry: bool) -> None:
    block = b"".join(encrypted_block(batch(row_is_entry=row_is_entry), encrypt))
    decoded = undecrypted(block)
    (value,) = decoded.values()
    assert value is not None
    header = parse_block_header(block)
    assert value == block[header.header_length : header.header_length + header.payload_length]
    assert (decoded.message_count, decoded.is_many_as_one) == (1, True)
    assert decoded.undecrypted is not None
    assert decoded.undecrypted.message_count == 3
    assert (decoded.sequence_ids(), decoded.keys()) == ([4], ["a"])
    assert not undecrypted(b"".join(encrypted_block(single(b"v"), encrypt))).is_many_as_one


def test_a_block_that_does_not_say_how_is_refused() -> None:
    block = b"".join(encode_block(b"x", first_sequence_id=0, last_sequence_id=0, flags=ENCRYPTED, **PLACE))
    with pytest.raises(InvalidMessage, match="does not say how"):
        decode_block(block, decrypt=decrypt)


def chunks(parts: Sequence[bytes]) -> list[bytes]:
    total = sum(map(len, parts))
    return [
        b"".join(
            encrypted_block(
                encode_single(
                    part,
                    sequence_id=1,
                    metadata=BlockMetadata(chunk=ChunkInfo("u", number, len(parts), total)),
                    **PLACE,
                ),
                encrypt,
            )
        )
        for number, part in enumerate(parts)
    ]


def test_chunks_are_encrypted_one_by_one() -> None:
    blocks = chunks([b"first", b"second"])
    payload = ChunkedPayload(sum(map(len, blocks)), decrypt)
    for block in blocks:
        assert parse_block_header(block).flags == CHUNK | ENCRYPTED
        payload.add(block)
    assert payload.decoded().values() == [b"firstsecond"]
    with pytest.raises(CryptoError):
        ChunkedPayload(1000).add(blocks[0])
    joined = undecrypted(b"".join(blocks)).values()[0]
    assert joined is not None
    assert len(joined) == len(b"firstsecond") + 2 * TAG_BYTES
