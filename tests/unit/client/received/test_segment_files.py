from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.client.received.block_decoder import SegmentFiles
from pulsar_ray.errors import CorruptData
from pulsar_ray.format.block_memory import MIN_BLOCK_BYTES
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single
from pulsar_ray.ledger.reader import SegmentGone

SIZES = (100, 2 * MIN_BLOCK_BYTES)


def batch_of_two(value: bytes) -> list[Buffer]:
    payload, columns = encode_rows([value, value])
    return encode_batch(
        payload,
        columns,
        message_count=2,
        incarnation=1,
        entry_seq=0,
        first_sequence_id=0,
        last_sequence_id=1,
        publish_time_ms=1,
    )


def single(value: bytes) -> list[Buffer]:
    return encode_single(value, incarnation=1, entry_seq=0, sequence_id=0, publish_time_ms=1)


def stored(
    path: Path, values: list[bytes], encode: Callable[[bytes], list[Buffer]] = single
) -> list[tuple[int, int]]:
    """A file of one block for each value, and where they are."""
    places = []
    with path.open("wb") as file:
        for value in values:
            block = b"".join(map(bytes, encode(value)))
            places.append((file.tell(), len(block)))
            file.write(block)
    return places


@pytest.mark.parametrize("size", SIZES)
def test_blocks_that_are_kept_do_not_change(tmp_path: Path, size: int) -> None:
    path = tmp_path / "1-0.seg"
    values = [os.urandom(size) for _ in range(8)]
    places = stored(path, values)
    files = SegmentFiles()
    kept = [files.decoded_block(str(path), *places[at]) for at in range(0, 8, 2)]
    for at in range(1, 8, 2):
        assert files.decoded_block(str(path), *places[at]).values() == [values[at]]
    files.close()
    assert [block.values() for block in kept] == [[value] for value in values[::2]]


@pytest.mark.parametrize(("size", "encode"), [(100, batch_of_two), (2 * MIN_BLOCK_BYTES, single)])
def test_a_block_in_use_is_shared_and_another_time_read_again(
    tmp_path: Path, size: int, encode: Callable[[bytes], list[Buffer]]
) -> None:
    path = tmp_path / "1-0.seg"
    (place,) = stored(path, [b"a" * size], encode)
    files = SegmentFiles()
    first = files.decoded_block(str(path), *place)
    assert files.decoded_block(str(path), *place) is first
    stored(path, [b"b" * size], encode)
    assert set(files.decoded_block(str(path), *place).values()) == {b"a" * size}
    del first
    gc.collect()
    assert set(files.decoded_block(str(path), *place).values()) == {b"b" * size}
    files.close()


def test_damage_and_absence_are_found_each_time(tmp_path: Path) -> None:
    path = tmp_path / "1-0.seg"
    (offset, length), _ = stored(path, [b"a" * 1000, b"b" * 1000])
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)
    files = SegmentFiles()
    for _ in range(2):
        with pytest.raises(CorruptData):
            files.decoded_block(str(path), offset, length)
        with pytest.raises(SegmentGone):
            files.decoded_block(str(tmp_path / "2-0.seg"), offset, length)
    files.close()


def test_many_threads_and_fewer_open_files_than_are_read(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}-0.seg" for number in range(5)]
    places = [stored(path, [b"%d" % number * 40_000] * 4) for number, path in enumerate(paths)]
    files = SegmentFiles(limit=2)
    failures: list[BaseException] = []

    def read(seed: int) -> None:
        choose = random.Random(seed)
        try:
            for _ in range(200):
                number = choose.randrange(5)
                block = files.decoded_block(str(paths[number]), *choose.choice(places[number]))
                assert block.values() == [b"%d" % number * 40_000]
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(files._open) <= 2
    files.close()
