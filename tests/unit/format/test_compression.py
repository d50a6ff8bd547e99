from __future__ import annotations

import contextlib
import random
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import lz4.block
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.format.compression import (
    LZ4,
    MAX_UNCOMPRESSED_LENGTH,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    UnknownCodec,
    compress,
    decompress,
)
from pulsar_ray.model.enums import CompressionType
from tests.unit.format.damage import bit_flips, truncations

CODECS = [NONE, LZ4, ZLIB, ZSTD, SNAPPY]
PACKING = CODECS[1:]
TEXT = b"the same words again and again; " * 8
BOMB = bytes(64 * 1024 * 1024)


def test_numbers_are_pulsars() -> None:
    kinds = CompressionType
    assert [kinds.NONE, kinds.LZ4, kinds.ZLib, kinds.ZSTD, kinds.SNAPPY] == CODECS


@pytest.mark.parametrize(
    ("codec", "stored"),
    [
        (LZ4, "f2097468652073616d6520776f72647320616761696e20616e640a002f3b202000c85061696e3b20"),
        (ZLIB, "789c2bc94855284ecc4d5528cf2f4a2956484c4fcccc5348cc4b81b0ac154a86b93c00743b5a21"),
        (
            ZSTD,
            "28b52ffd600000250100d07468652073616d6520776f72647320616761696e20616e643b200200dda128a6431903",
        ),
        (SNAPPY, "80025c7468652073616d6520776f72647320616761696e20616e64090a043b20fe2000fe2000fe20007e2000"),
    ],
)
def test_what_was_stored_stays_readable(codec: int, stored: str) -> None:
    assert decompress(codec, bytes.fromhex(stored), len(TEXT)) == TEXT


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("codec", CODECS)
def test_all_kinds_of_buffers(codec: int, kind: type) -> None:
    packed = compress(codec, kind(TEXT))
    assert bytes(decompress(codec, kind(packed), len(TEXT))) == TEXT


@pytest.mark.parametrize("codec", PACKING)
def test_every_truncation_is_refused(codec: int) -> None:
    for cut in truncations(bytes(compress(codec, TEXT))):
        with pytest.raises(ValueError):
            decompress(codec, cut, len(TEXT))


@pytest.mark.parametrize("codec", PACKING)
def test_damage_is_never_more_than_a_value_error(codec: int) -> None:
    for bad in bit_flips(bytes(compress(codec, TEXT))):
        with contextlib.suppress(ValueError):
            assert len(decompress(codec, bad, len(TEXT))) == len(TEXT)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wrong", [0, 1, len(TEXT) - 1, len(TEXT) + 1, 10 * len(TEXT)])
def test_wrong_length_is_refused(codec: int, wrong: int) -> None:
    with pytest.raises(ValueError):
        decompress(codec, compress(codec, TEXT), wrong)


@pytest.mark.parametrize("codec", PACKING)
def test_trailing_bytes_are_refused(codec: int) -> None:
    with pytest.raises(ValueError):
        decompress(codec, bytes(compress(codec, TEXT)) + b"more", len(TEXT))


@pytest.mark.parametrize("codec", CODECS)
def test_announced_length_above_the_limit_is_refused(codec: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        decompress(codec, b"x", MAX_UNCOMPRESSED_LENGTH + 1)
    with pytest.raises(ValueError, match="limit"):
        decompress(codec, compress(codec, TEXT), len(TEXT), limit=len(TEXT) - 1)


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        (LZ4, lz4.block.compress(BOMB, store_size=False)),
        (ZLIB, zlib.compress(BOMB)),
        (ZSTD, zstandard.ZstdCompressor().compress(BOMB)),
        (ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(BOMB)),
        (SNAPPY, snappy.compress(BOMB)),
    ],
)
def test_bomb_is_refused_without_unpacking_it(codec: int, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            decompress(codec, bomb, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def test_zstd_frame_that_announces_a_huge_size_is_refused() -> None:
    """Its decompressor would allocate that at once."""
    frame = bytes.fromhex("28b52ffde0") + (1 << 45).to_bytes(8, "little") + bytes.fromhex("010000")
    with pytest.raises(ValueError, match="announces"):
        decompress(ZSTD, frame, 1000)


@pytest.mark.parametrize("garbage", [b"", b"\xff", b"\xff" * 5, b"\x80" * 4, b"\xe8\x07"])
@pytest.mark.parametrize("codec", PACKING)
def test_garbage_is_refused(codec: int, garbage: bytes) -> None:
    with pytest.raises(ValueError):
        decompress(codec, garbage, 1000)


def test_unknown_codec_is_refused() -> None:
    with pytest.raises(UnknownCodec):
        compress(5, TEXT)
    with pytest.raises(UnknownCodec):
        decompress(5, TEXT, len(TEXT))


@pytest.mark.parametrize("codec", CODECS)
def test_threads_do_not_disturb_each_other(codec: int) -> None:
    samples = [random.Random(seed).randbytes(2000) * 20 for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(lambda sample: compress(codec, sample), samples))
        unpacked = pool.map(lambda data: decompress(codec, data, 40_000), packed)
        assert list(unpacked) == samples


@given(st.sampled_from(CODECS), st.binary(max_size=5000))
def test_round_trip(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data
