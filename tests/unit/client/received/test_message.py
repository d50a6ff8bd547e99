from __future__ import annotations

import pytest

from pulsar_ray.client.options.schema import StringSchema
from pulsar_ray.client.received.message import BlockRows, Message
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.message_id import MessageId
from tests.unit.client.blocks import TOPIC, received


def test_a_message_of_a_batch() -> None:
    block = received(
        [b"a", None, b""],
        keys=["k", None, "m"],
        ordering_keys=[None, "o", None],
        properties=[{"p": "1"}, None, None],
        event_times=[None, 5, None],
        partition=2,
        first_entry_id=9,
        redelivery_count=4,
    )
    first, second, third = (Message(block, row) for row in range(3))
    assert [m.data() for m in (first, second, third)] == [b"a", b"", b""]
    assert [m.has_null_value() for m in (first, second, third)] == [False, True, False]
    assert [m.value() for m in (first, second, third)] == [b"a", None, b""]
    assert [m.partition_key() for m in (first, second, third)] == ["k", "", "m"]
    assert [m.ordering_key() for m in (first, second, third)] == ["", "o", ""]
    assert [m.properties() for m in (first, second, third)] == [{"p": "1"}, {}, {}]
    assert [m.event_timestamp() for m in (first, second, third)] == [0, 5, 0]
    assert first.publish_timestamp() == third.publish_timestamp() == 1_700_000_000_000
    assert second.message_id() == MessageId(2, 3, 9, 1)
    assert second.message_id().batch_size() == 3
    assert second.message_id().topic_name == second.topic_name() == TOPIC
    assert second.redelivery_count() == 4
    assert second.producer_name() == "maker"
    assert second.schema_version() == ""
    assert second.encryption_context() is None
    assert bool(second)


def test_a_batch_of_one_keeps_batch_index_0() -> None:
    assert str(Message(received([b"a"], first_entry_id=3), 0).message_id()) == "(3,3,-1,0)"


def test_unbatched_messages_are_entries_of_their_own() -> None:
    block = received([b"a", b"b"], is_batching=False, first_entry_id=3)
    assert [str(Message(block, row).message_id()) for row in range(2)] == ["(3,3,-1,-1)", "(3,4,-1,-1)"]
    alone = Message(
        received([b"a"], is_batching=False, keys=["k"], properties=[{"a": "b"}], event_times=[7]), 0
    )
    assert str(alone.message_id()) == "(3,0,-1,-1)"
    assert (alone.data(), alone.partition_key(), alone.properties(), alone.event_timestamp()) == (
        b"a", "k", {"a": "b"}, 7,
    )  # fmt: skip


def test_a_lone_tombstone_keeps_its_key() -> None:
    message = Message(received([None], is_batching=False, keys=["k"]), 0)
    assert message.has_null_value()
    assert message.data() == b""
    assert message.partition_key() == "k"


def test_properties_cannot_be_changed_through_a_message() -> None:
    message = Message(received([b"a"], properties=[{"a": "b"}]), 0)
    message.properties()["a"] = "c"
    assert message.properties() == {"a": "b"}


def test_schema_version_is_a_character_per_byte() -> None:
    message = Message(received([b"a"], schema_version=bytes(7) + b"\x80"), 0)
    assert message.schema_version() == "\0" * 7 + "\x80"


def test_value_goes_through_the_schema() -> None:
    block = received([b"\xc3\xa9"])
    block.schema = StringSchema()
    assert Message(block, 0).value() == "é"


def test_an_outgoing_message_has_no_id_yet() -> None:
    message = Message(ReceivedBlock.outgoing(TOPIC, None, ordering_key="o", event_time=3), 0)
    assert message.message_id() == MessageId(-1, -1, -1, -1)
    assert (message.has_null_value(), message.ordering_key(), message.event_timestamp()) == (True, "o", 3)


def view() -> MessageBatchView:
    first = received([b"0", b"1", b"2"])
    second = received([b"3", b"4"], is_batching=False, first_entry_id=1)
    return MessageBatchView(
        [BlockRows(first, range(1, 3)), BlockRows(first, range(0)), BlockRows(second, [0, 1])]
    )


def test_a_view_is_a_sequence_of_messages() -> None:
    messages = view()
    assert len(messages) == 4
    assert [m.data() for m in messages] == [b"1", b"2", b"3", b"4"]
    assert [messages[i].data() for i in (0, 3, -1, -4)] == [b"1", b"4", b"4", b"1"]
    assert [m.data() for m in messages[1:3]] == [b"2", b"3"]
    assert [m.data() for m in reversed(messages)] == [b"4", b"3", b"2", b"1"]
    for index in (4, -5):
        with pytest.raises(IndexError):
            messages[index]


def test_a_message_looked_at_twice_is_equal() -> None:
    messages = view()
    looked_at = messages[2]
    assert messages[2] == looked_at
    assert list(messages)[2] == looked_at
    assert list(messages) == list(messages) == messages
    assert looked_at in messages
    with pytest.raises(IndexError):
        messages[-5]


def test_an_empty_view_is_false_and_equal_to_an_empty_list() -> None:
    assert not MessageBatchView([])
    assert MessageBatchView([]) == []


def test_a_list_is_no_batch() -> None:
    assert not isinstance([], MessageBatchView)
    assert isinstance(MessageBatchView([]), MessageBatchView)
