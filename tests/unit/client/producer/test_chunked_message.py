"""Cutting a message into chunks, and counting their receipts."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.producer.chunked_message import ChunkedMessage
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.unconfirmed_blocks import BlockNumbers, UnconfirmedBlock
from pulsar_ray.errors import MessageTooBig, Result, Timeout
from pulsar_ray.format.block import CHUNK, DELAYED, parse_block_header
from pulsar_ray.format.compression import LZ4, decompress
from pulsar_ray.format.metadata import MAX_CHUNKS

ALLOWANCE = 10 * 1024


def cut(value: bytes, chunk_bytes: int, codec: int = 0, fields: Any = None) -> ChunkedMessage | None:
    return ChunkedMessage.cut(value, fields, codec, chunk_bytes, chunk_bytes + ALLOWANCE)


def blocks_of(message: ChunkedMessage, results: list[Any]) -> list[UnconfirmedBlock]:
    def called(result: Any, message_id: Any) -> None:
        results.append((result, str(message_id)))

    return message.blocks(BlockNumbers(), "maker", 7, called, 2, lambda _: None)


def test_the_chunks_are_the_payload_in_order_and_only_the_last_has_what_the_message_says() -> None:
    value = bytes(range(256)) * 10
    message = cut(value, 1000, fields=MessageFields("key", "order", {"a": "b"}, 99))
    assert message is not None
    blocks = blocks_of(message, [])
    payload = b""
    for number, block in enumerate(blocks):
        data = b"".join(block.encoded())
        header = parse_block_header(data)
        metadata = header.metadata()
        assert header.flags & CHUNK
        assert (header.entry_seq, header.first_sequence_id) == (number, 7)
        assert header.uncompressed_length == len(value)
        assert metadata.chunk == ("maker-7", number, 3, len(value))
        is_last = number == 2
        assert (metadata.key, metadata.ordering_key) == (("key", "order") if is_last else (None, None))
        assert (metadata.properties, metadata.event_time) == (({"a": "b"}, 99) if is_last else (None, None))
        payload += data[header.header_length : header.header_length + header.payload_length]
    assert payload == value
    assert [block.messages for block in blocks] == [0, 0, 1]


def test_a_message_is_compressed_before_it_is_cut() -> None:
    value = b"".join(b"line %d of many; " % number for number in range(8000))
    message = cut(value, 10_000, LZ4)
    assert message is not None
    assert message.size < len(value)
    stored = b""
    for block in blocks_of(message, []):
        data = b"".join(block.encoded())
        header = parse_block_header(data)
        assert header.codec == LZ4
        stored += data[header.header_length : header.header_length + header.payload_length]
    assert decompress(LZ4, stored, len(value)) == value


def test_one_that_compression_makes_small_enough_is_not_cut() -> None:
    assert cut(bytes(100_000), 10_000, LZ4) is None


def test_the_callback_follows_the_last_receipt_with_the_first_and_the_last_chunk() -> None:
    message = cut(bytes(2500), 1000)
    assert message is not None
    results: list[Any] = []
    first, second, third = blocks_of(message, results)
    first.done(5, 10, None, 0)
    second.done(5, 12, None, 0)
    assert results == []
    third.done(6, 0, None, 0)
    assert results == [(Result.Ok, "(5,10,2,-1);(6,0,2,-1)")]


def test_a_message_fails_once_with_its_first_chunk_that_does() -> None:
    message = cut(bytes(2500), 1000)
    assert message is not None
    results: list[Any] = []
    first, second, third = blocks_of(message, results)
    first.done(5, 10, None, 0)
    second.done(-1, -1, Timeout("late"), 0)
    third.done(-1, -1, Timeout("late"), 0)
    assert [result for result, _ in results] == [Result.Timeout]


def test_too_many_chunks_are_refused_with_the_remedy() -> None:
    with pytest.raises(MessageTooBig, match="raise chunk_max_message_size"):
        cut(bytes(MAX_CHUNKS + 1), 1)


def test_metadata_that_fit_in_no_block_are_refused() -> None:
    with pytest.raises(MessageTooBig, match="shorten properties"):
        cut(bytes(2500), 1000, fields=MessageFields(properties={"a": "b" * 20_000}))


def test_the_last_chunk_of_a_delayed_message_has_its_time() -> None:
    message = cut(bytes(2500), 1000, fields=MessageFields(deliver_at=4_000_000_000_000))
    assert message is not None
    headers = [parse_block_header(b"".join(block.encoded())) for block in blocks_of(message, [])]
    assert [bool(header.flags & DELAYED) for header in headers] == [False, False, True]
    assert headers[2].metadata().deliver_at == 4_000_000_000_000
