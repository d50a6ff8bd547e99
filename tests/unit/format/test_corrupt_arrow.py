from __future__ import annotations

import struct
import subprocess
import sys

import pyarrow as pa
import pytest

from pulsar_ray.errors import InvalidMessage
from pulsar_ray.format.arrow_payload import BLOCK_SCHEMA, decode_rows
from pulsar_ray.format.payload import decode_block, encode_batch, encode_rows
from tests.unit.format import corrupt_arrow


def test_no_damage_under_a_valid_checksum_crashes_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", corrupt_arrow.__name__],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, decoded = map(int, done.stdout.split())
    assert refused > 1000
    assert decoded > 0


def test_bad_offset_is_refused_naming_the_place() -> None:
    """The offset that ends the process in an unvalidated to_pylist."""
    payload, columns = encode_rows([b"a", b"bb", b"ccc"])
    offsets = struct.pack("<4i", 0, 1, 3, 6)
    bad = bytes(payload).replace(offsets, struct.pack("<4i", 0, 1 << 30, 3, 6))
    assert bad != bytes(payload)
    block = b"".join(
        encode_batch(
            bad,
            columns,
            message_count=3,
            incarnation=0xAB,
            entry_seq=41,
            first_sequence_id=0,
            last_sequence_id=2,
            publish_time_ms=0,
        )
    )
    with pytest.raises(InvalidMessage, match=r"a\.seg offset 8: block 41 of incarnation 0xab.*bad Arrow"):
        decode_block(bytes(8) + block, 8, "a.seg")


def test_arrows_own_compression_is_refused_before_it_allocates() -> None:
    batch = pa.record_batch([pa.array([bytes(1 << 20)], pa.binary())], ["value"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message().serialize()
    assert pa.ipc.read_record_batch(message, batch.schema).num_rows == 1
    with pytest.raises(ValueError, match="compressed"):
        decode_rows(message, 1, 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff" * 8,
        b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(16),
        b"\xff\xff\xff\xff\x00\x00\x00\x80",
        BLOCK_SCHEMA.serialize().to_pybytes(),
    ],
)
def test_what_is_no_record_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="bad Arrow"):
        decode_rows(payload, 1, 1)


def test_other_number_of_rows_is_refused() -> None:
    payload, columns = encode_rows([b"a", b"b"])
    with pytest.raises(ValueError, match="2 rows instead of 3"):
        decode_rows(payload, columns, 3)


def test_columns_must_be_those_of_the_payload() -> None:
    payload, _ = encode_rows([b"a", b"b"])
    with pytest.raises(ValueError):
        decode_rows(payload, 63, 2)
    with pytest.raises(ValueError, match="value"):
        decode_rows(payload, 2, 2)


def test_message_without_sequence_id_is_refused() -> None:
    batch = pa.record_batch(
        [pa.array([b"a", b"b"], pa.binary()), pa.array([1, None], pa.int64())], ["value", "sequence_id"]
    )
    with pytest.raises(ValueError, match="sequence id"):
        decode_rows(batch.serialize(), 33, 2)
