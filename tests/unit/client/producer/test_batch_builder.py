from __future__ import annotations

import os
import random
from typing import Any

import pytest

from pulsar_ray.client.producer.batch import Batch
from pulsar_ray.client.producer.batch_builder import (
    METADATA_ALLOWANCE,
    OPENED,
    REFUSED,
    SEALED,
    BatchBuilder,
    BatchLimits,
)
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.errors import MessageTooBig
from pulsar_ray.format.block import MAX_ROWS, check_block_size
from pulsar_ray.model.enums import CompressionType
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.client.blocks import decoded

LIMIT = 5_242_880


def builder(clock: ManualClock | None = None, **arguments: Any) -> BatchBuilder:
    limits = {name: arguments.pop(name) for name in BatchLimits.__dataclass_fields__ if name in arguments}
    return BatchBuilder(BatchLimits(**{"is_batching": True, **limits}), clock or ManualClock(), **arguments)


def values(batches: list[Batch]) -> list[list[bytes | None]]:
    return [batch.values for batch in batches]


def finish(open_builder: BatchBuilder) -> list[Batch]:
    open_builder.seal()
    return open_builder.take_sealed()


# --- limits ----------------------------------------------------------------------------------------


def test_count_seals() -> None:
    batches = builder(max_messages=3)
    flags = [batches.add(bytes([n]), None) for n in range(7)]
    assert flags == [OPENED, 0, SEALED, OPENED, 0, SEALED, OPENED]
    assert values(batches.take_sealed()) == [[b"\0", b"\1", b"\2"], [b"\3", b"\4", b"\5"]]
    assert batches.take_sealed() == []
    assert batches.message_count == 1
    assert not batches.sealed


@pytest.mark.parametrize(
    ("size", "per_batch"), [(250, 4), (300, 3), (333, 3), (334, 2), (500, 2), (501, 1), (999, 1), (5000, 1)]
)
def test_bytes_are_a_sum_of_payloads_that_is_never_exceeded(size: int, per_batch: int) -> None:
    batches = builder(max_bytes=1000)
    for _ in range(12):
        batches.add(bytes(size), None)
    assert [batch.message_count for batch in finish(batches)] == [per_batch] * (12 // per_batch)


def test_a_batch_whose_bytes_are_exactly_the_limit_is_sealed_at_once() -> None:
    batches = builder(max_bytes=1000)
    assert [batches.add(bytes(250), None) for _ in range(4)] == [OPENED, 0, 0, SEALED]
    assert batches.message_count == 0


def test_a_message_that_does_not_fit_seals_the_batch_before_it() -> None:
    batches = builder(max_bytes=1000)
    batches.add(bytes(600), None)
    assert batches.add(bytes(600), None) == SEALED | OPENED
    assert batches.add(bytes(1001), None) == SEALED
    assert [batch.payload_bytes for batch in batches.take_sealed()] == [600, 600, 1001]


def test_delay_counts_from_the_first_message() -> None:
    clock = ManualClock(now_ms=1000)
    batches = builder(clock, max_delay_ms=500)
    assert batches.deadline_ms is None
    for value in (b"0", b"1", b"2"):
        batches.add(value, None)
        clock.advance(200)
        assert batches.deadline_ms == 500
    assert not batches.seal_due(499)
    assert batches.seal_due(500)
    assert not batches.seal_due(10_000)
    (sealed,) = batches.take_sealed()
    assert sealed.publish_time_ms == 1000
    batches.add(b"3", None)
    assert batches.deadline_ms == 1100


def test_a_wall_clock_that_jumps_does_not_move_the_deadline() -> None:
    clock = ManualClock()
    batches = builder(clock, max_delay_ms=500)
    batches.add(b"0", None)
    clock.set_now(0)
    assert batches.deadline_ms == 500


def test_callbacks_stay_with_their_messages() -> None:
    batches = builder(max_messages=2)
    calls = [lambda result, message_id, n=n: n for n in range(3)]
    for call in calls:
        batches.add(b"v", call)
    assert [batch.callbacks for batch in finish(batches)] == [calls[:2], calls[2:]]


def test_seal_of_nothing() -> None:
    assert not builder().seal()
    assert not builder(is_key_based=True).seal()


# --- without batching ------------------------------------------------------------------------------


def test_unbatched_messages_gather_as_entries_of_one_block() -> None:
    batches = builder(is_batching=False, max_messages=2)
    assert [batches.add(b"v", None) for _ in range(5)] == [OPENED, 0, 0, 0, 0]
    (sealed,) = finish(batches)
    assert (sealed.message_count, sealed.entries, sealed.is_batch) == (5, 5, False)
    assert decoded(sealed).header.row_is_entry


def test_unbatched_blocks_are_cut_by_rows_and_bytes() -> None:
    batches = builder(is_batching=False)
    for _ in range(MAX_ROWS + 1):
        batches.add(b"", None)
    assert [batch.message_count for batch in finish(batches)] == [MAX_ROWS, 1]
    for _ in range(40):
        batches.add(bytes(50_000), None)
    assert all(batch.payload_bytes <= 1 << 20 for batch in finish(batches))


def test_large_unbatched_messages_are_not_copied_into_a_block() -> None:
    batches = builder(is_batching=False)
    large = bytes(100_000)
    batches.add(b"a", None)
    assert batches.add(large, None) == SEALED
    batches.add(b"b", None)
    sealed = finish(batches)
    assert values(sealed) == [[b"a"], [large], [b"b"]]
    buffers = sealed[1].encode(incarnation=1, entry_seq=1, producer_name="p")
    assert any(buffer is large for buffer in buffers)


# --- keys, sequence ids ----------------------------------------------------------------------------


def test_columns_of_messages_that_have_them() -> None:
    batches = builder(max_messages=4)
    batches.add(b"0", None)
    batches.add(None, None, MessageFields(key="k", properties={"a": "b"}))
    batches.add(b"2", None, MessageFields(ordering_key="o", event_time=7))
    batches.add(b"3", None)
    (sealed,) = batches.take_sealed()
    block = decoded(sealed)
    assert block.values() == [b"0", None, b"2", b"3"]
    assert block.keys() == [None, "k", None, None]
    assert block.ordering_keys() == [None, None, "o", None]
    assert block.properties() == [{}, {"a": "b"}, {}, {}]
    assert block.event_times() == [None, None, 7, None]
    assert block.metadata.key is None
    assert block.metadata.producer_name == "maker"


def test_the_header_has_the_first_messages_keys() -> None:
    batches = builder()
    batches.add(b"0", None, MessageFields(key="k", ordering_key="o"))
    batches.add(b"1", None, MessageFields(key="m"))
    block = decoded(finish(batches)[0])
    assert (block.metadata.key, block.metadata.ordering_key) == ("k", "o")
    assert block.keys() == ["k", "m"]
    assert block.ordering_keys() == ["o", None]


def test_one_key_for_all_needs_no_column() -> None:
    batches = builder()
    for value in (b"0", b"1"):
        batches.add(value, None, MessageFields(key="k"))
    block = decoded(finish(batches)[0])
    assert block.keys() == ["k", "k"]
    assert block.header.columns == 1


def test_automatic_sequence_ids_go_on_over_batches() -> None:
    batches = builder(max_messages=2, first_sequence_id=10)
    for _ in range(5):
        batches.add(b"v", None)
    sealed = finish(batches)
    assert [(b.first_sequence_id, b.last_sequence_id, b.sequence_ids) for b in sealed] == [
        (10, 11, None), (12, 13, None), (14, 14, None),
    ]  # fmt: skip
    assert batches.next_sequence_id == 15


def test_given_sequence_ids_are_kept_and_automatic_ones_follow_the_highest() -> None:
    batches = builder()
    for given in (None, None, 7, None, 3, None):
        batches.add(b"v", None, MessageFields(sequence_id=given))
    sealed, behind = finish(batches)
    assert sealed.sequence_ids == [0, 1, 7, 8]
    assert (sealed.first_sequence_id, sealed.last_sequence_id) == (0, 8)
    assert decoded(sealed).sequence_ids() == [0, 1, 7, 8]
    assert decoded(behind).sequence_ids() == [3, 9]
    assert batches.next_sequence_id == 10


def test_given_ids_that_are_consecutive_need_no_column() -> None:
    batches = builder()
    for given in (5, 6, None, 8):
        batches.add(b"v", None, MessageFields(sequence_id=given))
    (sealed,) = finish(batches)
    assert (sealed.first_sequence_id, sealed.last_sequence_id, sealed.sequence_ids) == (5, 8, None)


def test_a_lower_given_id_does_not_turn_the_count_back() -> None:
    batches = builder(first_sequence_id=10)
    batches.add(b"v", None, MessageFields(sequence_id=4))
    (sealed,) = finish(batches)
    assert (sealed.first_sequence_id, sealed.last_sequence_id, sealed.sequence_ids) == (4, 4, None)
    assert batches.next_sequence_id == 10


def test_sequence_ids_against_a_naive_model() -> None:
    for seed in range(20):
        print("seed", seed)
        choose = random.Random(seed)
        batches = builder(max_messages=choose.choice([2, 5, 50]))
        highest = -1
        expected = []
        for row in range(100):
            given = choose.choice([None, None, None, choose.randrange(200)])
            expected.append(highest + 1 if given is None else given)
            highest = max(highest, expected[-1])
            key = choose.choice([None, "a", "b"])
            if given is None and key is None:
                batches.add(str(row).encode(), None)
            else:
                batches.add(str(row).encode(), None, MessageFields(key, sequence_id=given))
        assert batches.next_sequence_id == highest + 1
        found: dict[bytes | None, int] = {}
        for sealed in finish(batches):
            block = decoded(sealed)
            found.update(zip(block.values(), block.sequence_ids(), strict=True))
        assert [found[str(row).encode()] for row in range(100)] == expected


# --- key-based -------------------------------------------------------------------------------------


def test_key_based_batches_have_one_key_each_in_the_order_of_their_first_messages() -> None:
    batches = builder(is_key_based=True)
    keys = [None, "k1", "k2", "k3"] * 3
    flags = [batches.add(b"%d" % n, None, MessageFields(key)) for n, key in enumerate(keys)]
    assert flags == [OPENED] + [0] * 11
    sealed = finish(batches)
    assert values(sealed) == [
        [b"0", b"4", b"8"],
        [b"1", b"5", b"9"],
        [b"2", b"6", b"10"],
        [b"3", b"7", b"11"],
    ]
    assert [batch.first_sequence_id for batch in sealed] == [0, 3, 6, 9]
    blocks = [decoded(batch) for batch in sealed]
    assert [block.metadata.key for block in blocks] == [None, "k1", "k2", "k3"]
    assert blocks[1].sequence_ids() == [3, 4, 5]


@pytest.mark.parametrize("is_key_based", [False, True])
def test_sequence_ids_rise_within_a_block_and_blocks_do_not_interlace(is_key_based: bool) -> None:
    batches = builder(is_key_based=is_key_based)
    given = [
        ("a", None),
        ("b", None),
        ("a", 7),
        ("a", 9),
        ("b", 12),
        ("b", 12),
        ("b", 3),
        ("b", 4),
        ("b", None),
    ]
    for key, sequence_id in given:
        batches.add(b"v", None, MessageFields(key, sequence_id=sequence_id))
    ids = [decoded(batch).sequence_ids() for batch in finish(batches)]
    if is_key_based:
        assert ids == [[0], [1], [7, 9], [12], [12], [3, 4], [13]]
    else:
        assert ids == [[0, 1, 7, 9, 12], [12], [3, 4, 13]]


def test_key_based_limits_hold_over_all_keys_together() -> None:
    by_count = builder(is_key_based=True, max_messages=4)
    for n in range(12):
        by_count.add(b"v", None, MessageFields(f"k{n % 3}"))
    assert [batch.message_count for batch in by_count.take_sealed()] == [2, 1, 1] * 3
    by_bytes = builder(is_key_based=True, max_bytes=1000)
    flags = [by_bytes.add(bytes(300), None, MessageFields(f"k{n}")) for n in range(4)]
    assert flags == [OPENED, 0, 0, SEALED | OPENED]


def test_the_batching_key_is_the_ordering_key_before_the_key() -> None:
    batches = builder(is_key_based=True)
    batches.add(b"0", None, MessageFields("a", "o"))
    batches.add(b"1", None, MessageFields("b", "o"))
    batches.add(b"2", None, MessageFields("o"))
    batches.add(b"3", None, MessageFields(""))
    batches.add(b"4", None)
    assert values(finish(batches)) == [[b"0", b"1", b"2"], [b"3", b"4"]]


def test_key_based_deadline() -> None:
    clock = ManualClock()
    batches = builder(clock, is_key_based=True, max_delay_ms=10)
    batches.add(b"0", None, MessageFields("a"))
    clock.advance(5)
    batches.add(b"1", None, MessageFields("b"))
    assert batches.deadline_ms == 10
    assert batches.seal_due(10)
    assert batches.deadline_ms is None


# --- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_batching", [True, False])
def test_the_largest_message_passes_and_one_byte_more_does_not(is_batching: bool) -> None:
    batches = builder(is_batching=is_batching)
    batches.add(b"before", None)
    with pytest.raises(MessageTooBig, match="max_message_size"):
        batches.add(bytes(LIMIT + 1), None)
    assert batches.message_count == 1
    assert batches.next_sequence_id == 1
    assert batches.add(bytes(LIMIT), None) == SEALED
    large = finish(batches)[1]
    header = decoded(large).header
    check_block_size(header.payload_length, header.total_length)


def test_compressible_messages_may_be_larger() -> None:
    batches = builder(codec=CompressionType.LZ4)
    batches.add(b"before", None)
    large = bytes(10 * 1024 * 1024)
    assert batches.add(large, None) == SEALED
    with pytest.raises(MessageTooBig):
        batches.add(os.urandom(LIMIT + 1), None)
    _, sealed = batches.take_sealed()
    block = decoded(sealed, codec=CompressionType.LZ4)
    assert block.values() == [large]
    assert block.header.codec == CompressionType.LZ4
    assert block.header.payload_length < 100_000


def test_keys_and_properties_have_an_allowance_of_their_own() -> None:
    batches = builder()
    batches.add(bytes(LIMIT), None, MessageFields(properties={"a": "b" * (METADATA_ALLOWANCE - 500)}))
    with pytest.raises(MessageTooBig, match="netty_max_frame_size_bytes"):
        batches.add(bytes(LIMIT), None, MessageFields(properties={"a": "b" * METADATA_ALLOWANCE}))
    (sealed,) = finish(batches)
    header = decoded(sealed).header
    check_block_size(header.payload_length, header.total_length)


@pytest.mark.parametrize("is_batching", [True, False])
@pytest.mark.parametrize("limit", [100, 1000, 20_000, 200_000])
def test_no_block_is_above_the_partitions_limit(is_batching: bool, limit: int) -> None:
    for seed in range(5):
        print("seed", seed)
        choose = random.Random(seed)
        batches = builder(
            is_batching=is_batching, max_messages=500, max_bytes=10_000_000, max_message_size=limit
        )
        sent = []
        for _ in range(300):
            value = bytes(choose.choice([0, 1, limit // 50, limit // 3, limit - 1, limit]))
            sent.append(value)
            if choose.random() < 0.5:
                batches.add(value, None)
            else:
                key, properties = "k" * choose.randrange(50), {"a": "b" * choose.randrange(99)}
                batches.add(value, None, MessageFields(key, "é" * 20, properties, 5))
        found: list[bytes | None] = []
        for sealed in finish(batches):
            block = decoded(sealed)
            check_block_size(
                block.header.payload_length, block.header.total_length, limit, limit + METADATA_ALLOWANCE
            )
            found += block.values()
        assert found == sent


def test_batches_of_six_large_messages_are_cut_instead_of_refused() -> None:
    batches = builder(max_messages=100, max_bytes=100_000_000)
    for _ in range(6):
        batches.add(bytes(1_000_000), None)
    assert [batch.message_count for batch in finish(batches)] == [1] * 6


# --- turns -----------------------------------------------------------------------------------------


class Turns:
    """A builder whose turns are counted as they end."""

    def __init__(self, **arguments: Any) -> None:
        self.clock = ManualClock()
        self.builder = builder(self.clock, **arguments)
        self.builder.on_turn_over = self._over
        self.over = 0

    def _over(self) -> None:
        self.over += 1

    def add(self, value: bytes, **fields: Any) -> int:
        return self.builder.add(value, None, MessageFields(**fields))

    def add_in_turn(self, value: bytes) -> int:
        return self.builder.add(value, None, in_turn=True)


@pytest.mark.parametrize("key_based", [False, True])
def test_a_message_in_turn_that_does_not_fit_ends_the_turn_and_is_not_added(key_based: bool) -> None:
    turns = Turns(max_bytes=1000, is_key_based=key_based)
    assert [turns.add_in_turn(bytes(300)) for _ in range(3)] == [OPENED, 0, 0]
    assert turns.add_in_turn(bytes(300)) == SEALED | REFUSED
    assert (turns.over, turns.builder.message_count) == (1, 0)
    assert [batch.message_count for batch in turns.builder.take_sealed()] == [3]
    assert turns.builder.next_sequence_id == 3
    assert turns.add_in_turn(bytes(300)) == OPENED


def test_whatever_finishes_a_batch_with_messages_in_turn_ends_the_turn_once() -> None:
    turns = Turns(max_bytes=1000, max_messages=3, max_delay_ms=10)
    for _ in range(3):  # by count
        turns.add_in_turn(b"1")
    assert turns.over == 1
    turns.add_in_turn(b"1")  # by a flush
    turns.builder.seal()
    turns.builder.seal()
    assert turns.over == 2
    turns.add_in_turn(b"1")  # by its delay
    turns.clock.advance(10)
    assert turns.builder.seal_due(turns.clock.monotonic_ms())
    assert turns.over == 3
    turns.add_in_turn(b"1")  # by another message, which then opens a batch
    assert turns.add(bytes(1000), key="k") & SEALED
    assert turns.over == 4
    turns.builder.seal()
    assert turns.over == 4


def test_a_message_in_turn_too_large_for_any_batch_goes_to_the_next_turn() -> None:
    turns = Turns(max_bytes=1000)
    turns.add_in_turn(b"1")
    assert turns.add_in_turn(bytes(2000)) == SEALED | REFUSED
    assert turns.add_in_turn(bytes(2000)) == SEALED  # where nothing is open it is a batch of its own
    assert turns.over == 2
    turns.add_in_turn(b"1")
    with pytest.raises(MessageTooBig):
        turns.add_in_turn(bytes(LIMIT + 1))
    assert (turns.over, turns.builder.message_count) == (2, 1)


def test_batches_without_messages_in_turn_end_no_turn() -> None:
    turns = Turns(max_bytes=1000)
    turns.add(bytes(900), key="k")
    assert turns.add_in_turn(bytes(300)) == SEALED | OPENED
    assert (turns.over, turns.builder.message_count) == (0, 1)
    turns.add(bytes(600), key="k")
    assert turns.add(bytes(600), key="k") == SEALED | OPENED
    assert turns.over == 1
    turns.builder.seal()
    assert turns.over == 1


# --- delayed messages ------------------------------------------------------------------------------


DUE_MS = ManualClock().now_ms() + 60_000


def times_of(batch: Batch) -> list[int | None] | None:
    return batch.delivery_times


def test_delayed_messages_share_a_block_with_others_without_batching() -> None:
    unbatched = builder(is_batching=False)
    unbatched.add(b"0", None)
    unbatched.add(b"1", None, MessageFields(deliver_at=DUE_MS))
    unbatched.add(b"2", None, MessageFields("k", None, None, None, None, DUE_MS + 1))
    unbatched.add(b"3", None)
    (batch,) = finish(unbatched)
    assert (times_of(batch), batch.entries, batch.is_batch) == ([None, DUE_MS, DUE_MS + 1, None], 4, False)


def test_a_delayed_message_goes_alone_in_its_place_with_batching() -> None:
    batching = builder()
    for number, time in enumerate((None, None, DUE_MS, DUE_MS + 1, None)):
        if time is None:
            batching.add(b"%d" % number, None)
        else:
            batching.add(b"%d" % number, None, MessageFields(deliver_at=time))
    batches = finish(batching)
    assert values(batches) == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert [(batch.is_batch, times_of(batch)) for batch in batches] == [
        (True, None),
        (False, [DUE_MS, DUE_MS + 1]),
        (True, None),
    ]
    assert [batch.first_sequence_id for batch in batches] == [0, 2, 4]


def test_delayed_messages_of_several_keys_share_a_block() -> None:
    keyed = builder(is_key_based=True)
    keyed.add(b"0", None, MessageFields("a", None, None, None, None, None))
    keyed.add(b"1", None, MessageFields("a", None, None, None, None, DUE_MS))
    keyed.add(b"2", None, MessageFields("b", None, None, None, None, DUE_MS + 1))
    keyed.add(b"3", None, MessageFields("a", None, None, None, None, None))
    assert values(finish(keyed)) == [[b"0"], [b"1", b"2"], [b"3"]]


@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_many_delayed_messages_stay_within_the_limits(size: int) -> None:
    unbatched = builder(is_batching=False)
    count = 20_000 if size == 1 else 30
    for number in range(count):
        unbatched.add(bytes(size), None, MessageFields(deliver_at=DUE_MS + number))
    batches = finish(unbatched)
    assert sum(len(batch.values) for batch in batches) == count
    for batch in batches:
        assert len(batch.values) <= MAX_ROWS
        block = b"".join(map(bytes, batch.encode(incarnation=1, entry_seq=0, producer_name="p")))
        check_block_size(len(block), len(block))


@pytest.mark.parametrize("limit", [8_000, 70_000])
def test_delayed_messages_with_all_that_a_message_can_have_stay_within_a_small_limit(limit: int) -> None:
    unbatched = builder(is_batching=False, max_message_size=limit, producer_name="p")
    for number in range(3000):
        if number % 50:
            unbatched.add(b"x", None, MessageFields(deliver_at=DUE_MS + number))
        else:
            fields = MessageFields("k", "o", {"a": "b"}, 7, number + 100_000, DUE_MS + number)
            unbatched.add(b"x", None, fields)
    batches = finish(unbatched)
    assert len(batches) < 300
    for batch in batches:
        block = b"".join(map(bytes, batch.encode(incarnation=1, entry_seq=0, producer_name="p")))
        check_block_size(len(block), len(block), limit, limit)


@pytest.mark.parametrize("is_batching", [False, True])
def test_a_time_that_has_passed_is_none(is_batching: bool) -> None:
    clock = ManualClock()
    batches = builder(clock, is_batching=is_batching)
    batches.add(b"0", None, MessageFields(deliver_at=clock.now_ms()))
    batches.add(b"1", None)
    batches.add(b"2", None, MessageFields(deliver_at=-1))
    (batch,) = finish(batches)
    assert (batch.values, times_of(batch), batch.is_batch) == ([b"0", b"1", b"2"], None, is_batching)


@pytest.mark.parametrize("is_batching", [False, True])
def test_an_entry_that_is_encrypted_has_a_block_of_its_own(is_batching: bool) -> None:
    """Nobody could see the keys of several in one."""
    clock = ManualClock()
    encrypting = builder(clock, is_batching=is_batching, is_encrypted=True)
    later = MessageFields(None, None, None, None, None, clock.now_ms() + 1000)
    for value in (b"1", b"2"):
        encrypting.add(value, None)
    for value in (b"3", b"4"):
        encrypting.add(value, None, later)
    together = [[b"1", b"2"]] if is_batching else [[b"1"], [b"2"]]
    assert values(finish(encrypting)) == [*together, [b"3"], [b"4"]]
