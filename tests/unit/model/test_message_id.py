from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.model.message_id import MessageId

MINUS_ONE = "ff" * 9 + "01"
MAX = "ff" * 8 + "7f"

int64 = st.integers(min_value=-1, max_value=2**63 - 1)
int32 = st.integers(min_value=-1, max_value=2**31 - 1)


@pytest.mark.parametrize(
    ("message_id", "serialised"),
    [
        (MessageId(-1, 3, 0), "08031000"),
        (MessageId(1, 4, 0), "080410001801"),
        (MessageId(-1, 3, 2, 1, batch_size=3), "0803100220013003"),
        (MessageId(-1, 3, 3, 0, batch_size=1), "0803100320003001"),
        (MessageId.earliest, f"08{MINUS_ONE}10{MINUS_ONE}"),
        (MessageId.latest, f"08{MAX}10{MAX}"),
        (MessageId(-1, 7, 2, first_chunk=MessageId(-1, 7, 0)), "080710023a0408071000"),
    ],
)
def test_serialised_bytes_are_pulsars(message_id: MessageId, serialised: str) -> None:
    assert message_id.serialize().hex() == serialised
    back = MessageId.deserialize(bytes.fromhex(serialised))
    assert back == message_id
    assert (back.batch_size(), back.first_chunk()) == (message_id.batch_size(), message_id.first_chunk())


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        (MessageId(-1, 3, 0), "(3,0,-1,-1)"),
        (MessageId(1, 4, 0), "(4,0,1,-1)"),
        (MessageId(-1, 3, 2, 1), "(3,2,-1,1)"),
        (MessageId(), "(-1,-1,-1,-1)"),
        (MessageId.latest, "(9223372036854775807,9223372036854775807,-1,-1)"),
        (MessageId(-1, 7, 2, first_chunk=MessageId(-1, 7, 0)), "(7,0,-1,-1);(7,2,-1,-1)"),
    ],
)
def test_text(message_id: MessageId, text: str) -> None:
    assert str(message_id) == repr(message_id) == text


def test_ids_have_one_total_order() -> None:
    ordered = [
        MessageId.earliest,
        MessageId(-1, 3, 0),
        MessageId(0, 3, 0),
        MessageId(1, 3, 0),
        MessageId(-1, 3, 0, 0),
        MessageId(1, 3, 0, 0),
        MessageId(-1, 3, 0, 1),
        MessageId(-1, 3, 1),
        MessageId(-1, 4, 0),
        MessageId.latest,
    ]
    for (i, a), (j, b) in itertools.product(enumerate(ordered), repeat=2):
        assert (a < b, a <= b, a > b, a >= b, a == b, a != b) == (
            i < j,
            i <= j,
            i > j,
            i >= j,
            i == j,
            i != j,
        )
    assert len(set(ordered)) == len(ordered)


def test_equality_is_by_the_four_numbers() -> None:
    one = MessageId(-1, 3, 0, 1, batch_size=5, topic_name="persistent://public/default/a")
    other = MessageId(partition=-1, ledger_id=3, entry_id=0, batch_index=1)
    assert one == other
    assert hash(one) == hash(other)
    assert one != (3, 0, -1, 1)


def test_comparing_with_something_else_is_a_type_error() -> None:
    bigger: Any = 5
    with pytest.raises(TypeError):
        assert MessageId(-1, 3, 0) < bigger


def test_accessors() -> None:
    message_id = MessageId(2, 3, 4, 5, batch_size=6, topic_name="t")
    numbers = (
        message_id.partition(),
        message_id.ledger_id(),
        message_id.entry_id(),
        message_id.batch_index(),
    )
    assert numbers == (2, 3, 4, 5)
    assert (message_id.batch_size(), message_id.topic_name) == (6, "t")
    assert MessageId(-1, 3, 0).topic_name == ""
    assert MessageId.wrap(message_id) is message_id


def test_deserialising_attaches_the_topic() -> None:
    data = MessageId(-1, 3, 0).serialize()
    assert MessageId.deserialize(data, topic="persistent://a/b/c").topic_name == "persistent://a/b/c"
    assert MessageId.deserialize(data, None).topic_name == ""


def test_pickling_keeps_everything() -> None:
    message_id = MessageId(2, 3, 4, 5, batch_size=6, topic_name="t", first_chunk=MessageId(2, 3, 1))
    copy = pickle.loads(pickle.dumps(message_id))
    assert copy == message_id
    assert (copy.batch_size(), copy.topic_name, copy.first_chunk()) == (6, "t", MessageId(2, 3, 1))


@given(st.one_of(int32), st.integers(0, 2**63 - 1), int64, int32, st.integers(0, 2**31 - 1))
def test_round_trip(partition: int, ledger: int, entry: int, batch_index: int, batch_size: int) -> None:
    message_id = MessageId(partition, ledger, entry, batch_index, batch_size=batch_size)
    back = MessageId.deserialize(message_id.serialize())
    assert back == message_id
    assert back.batch_size() == batch_size


@given(st.binary(max_size=64))
def test_garbage_is_a_value_error_or_a_valid_id(data: bytes) -> None:
    try:
        message_id = MessageId.deserialize(data)
    except ValueError:
        return
    assert MessageId.earliest <= message_id <= MessageId(2**31 - 1, 2**63 - 1, 2**63 - 1, 2**31 - 1)


def test_every_truncation_is_a_value_error_or_lacks_only_optional_fields() -> None:
    data = MessageId(1, 3, 2, 1, batch_size=3, first_chunk=MessageId(1, 3, 0)).serialize()
    optional_from = 4
    field_ends = {4, 6, 8, 10}
    for length in range(len(data)):
        if length >= optional_from and length in field_ends:
            assert MessageId.deserialize(data[:length]).entry_id() == 2
        else:
            with pytest.raises(ValueError):
                MessageId.deserialize(data[:length])


@pytest.mark.parametrize(
    "data",
    [
        "",
        "0803",  # no entry
        "1000",  # no ledger
        "08" + "ff" * 10 + "01" + "1000",  # a number of eleven bytes
        "0a0103" + "1000",  # ledger as bytes
        "08031000" + "18fe" + "ff" * 8 + "01",  # partition -2
        "08031000" + "1880" + "80808008",  # partition 2^31
        "08fe" + "ff" * 8 + "01" + "1000",  # ledger -2
        "08031000" + "1b",  # a group
        "08031000" + "0000",  # field number 0
        "08031000" + "3a06" + "08031000" + "3a00",  # a chunk inside a chunk
        "08031000" + "3aff" + "ff" * 8 + "01",  # negative length
        "08031000" + "39" + "00" * 7,  # cut off fixed64
    ],
)
def test_malformed_bytes_are_a_value_error(data: str) -> None:
    with pytest.raises(ValueError, match="not a serialised MessageId"):
        MessageId.deserialize(bytes.fromhex(data))


def test_fields_of_later_versions_are_passed_over() -> None:
    later = "4001" + "4a020102" + "51" + "00" * 8 + "5d" + "00" * 4
    assert MessageId.deserialize(bytes.fromhex("08031000" + later)) == MessageId(-1, 3, 0)
    ack_sets = "2801" + "2a020102"
    assert MessageId.deserialize(bytes.fromhex("08031000" + ack_sets)) == MessageId(-1, 3, 0)


@pytest.mark.parametrize("value", ["08031000", None, 5])
def test_deserialising_something_else_than_bytes_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError, match="bytes"):
        MessageId.deserialize(value)


@pytest.mark.parametrize(
    "message_id",
    [MessageId(-1, 2**63, 0), MessageId(-1, -2, 0), MessageId(2**31, 1, 1), MessageId(-1, 1, -2)],
)
def test_an_id_out_of_range_cannot_be_serialised(message_id: MessageId) -> None:
    with pytest.raises(ValueError, match="is no message id"):
        message_id.serialize()
