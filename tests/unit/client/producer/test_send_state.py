"""What becomes of a producer's messages: events in, actions out, without threads."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer import send_state
from pulsar_ray.client.producer.batch_builder import BatchBuilder, BatchLimits
from pulsar_ray.client.producer.message_fields import MessageFields
from pulsar_ray.client.producer.routing import BatchTurnsRouter
from pulsar_ray.client.producer.send_state import (
    ATTACH,
    CLOSED,
    COMPLETE,
    ELSEWHERE,
    ENDED,
    FULL,
    IN_FLIGHT_UNBATCHED,
    MAX_UNCONFIRMED_BYTES,
    OPEN,
    PATIENCE_S,
    SILENCE_S,
    TIME,
    UNANSWERED,
    UNLIMITED,
    WAKE,
    WRITE,
    SendState,
)
from pulsar_ray.client.producer.unconfirmed_blocks import UnconfirmedBlock
from pulsar_ray.errors import (
    AlreadyClosed,
    DiskSpaceLow,
    MessageTooBig,
    PulsarException,
    Result,
    Timeout,
    WrongNode,
)
from pulsar_ray.format.block import BlockHeader, parse_block_header
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.session.requests import ProducerOpened
from pulsar_ray.testing.manual_clock import ManualClock
from tests.unit.client.producer.publishing_link import opened, receipts

SETTLED = COMPLETE | WAKE


class Partition:
    """Where the partition is, when it is not open."""

    absence: WrongNode | None = None
    is_parked = False


class There:
    """Another partition, which is there."""

    takes_keyless = True


class Sending:
    """A state that is open on the carrier "first", and what its messages were told."""

    def __init__(self, *, is_open: bool = True, **options: Any) -> None:
        self.clock = ManualClock()
        self.clock.advance(1000)
        self.partition = Partition()
        self.told: list[tuple[str, Any]] = []
        self.state = SendState(
            ProducerOptions(topic="t", **options),
            0,
            self.partition,
            self.clock,
            lambda: self.clock.monotonic_ms() / 1000,
        )
        if is_open:
            self.state.begun(opened("maker"))
            self.open()

    def open(self, carrier: Any = "first") -> int:
        return self.state.opened(opened("maker"), carrier)

    def send(self, value: str, fields: MessageFields | None = None, **how: bool) -> int:
        def told(result: Any, message_id: MessageId) -> None:
            self.told.append((value, message_id.entry_id() if result == Result.Ok else result))

        return self.state.add(value.encode(), told, fields, **how)

    def write(self) -> list[BlockHeader]:
        """Write all that may be written; the headers of the blocks."""
        written = []
        while self.state.has_work() and (work := self.state.next_block()) is not None:
            written.append(parse_block_header(b"".join(work[0].encoded())))
        return written

    def call_back(self) -> list[tuple[str, Any]]:
        """Call back all that is settled; what was told since the last time."""
        while self.state.settled:
            self.state.settled.popleft().complete()
        told, self.told = self.told, []
        return told

    def fill(self, messages: int = 2, size: int = 1) -> None:
        self.state.unconfirmed.add(UnconfirmedBlock(0, 1, messages, [], size, 0.0, lambda *_: None))

    def turns(self, current: int = 0) -> BatchTurnsRouter:
        """Let two partitions take turns, of which this is the first."""
        turns = BatchTurnsRouter(2, current, hash)
        turns.serve([self.state, There()])
        self.state.joined(turns)
        return turns

    def encoded(self, size: int = 1, messages: int = 3, entries: int = 2) -> list[Any]:
        """Add a block encoded elsewhere; what its encoder was given."""
        given: list[Any] = []

        def encode(*numbers: Any) -> list[Any]:
            given.extend(numbers)
            return [b""]

        def done(_ledger: int, _entry: int, error: PulsarException | None, _before: int) -> None:
            self.told.append(("block", error))

        self.state.add_encoded(encode, entries=entries, messages=messages, size=size, done=done)
        return given


def seqs(headers: list[BlockHeader]) -> list[tuple[int, int]]:
    return [(header.entry_seq, header.message_count) for header in headers]


# --- messages without batching ---------------------------------------------------------------------


def test_messages_gather_into_one_block_while_enough_blocks_are_under_way() -> None:
    it = Sending()
    for value in ("a", "b")[:IN_FLIGHT_UNBATCHED]:
        assert it.send(value) == WRITE
        it.write()
    assert [it.send("c"), it.send("d")] == [0, 0]
    assert not it.state.has_work()
    assert it.state.confirmed(receipts(0)) == SETTLED | WRITE
    assert seqs(it.write()) == [(2, 2)]


def test_messages_that_callbacks_send_go_together() -> None:
    it = Sending()
    it.state.is_calling_back = True
    assert [it.send("a"), it.send("b")] == [0, 0]
    assert not it.state.has_work()
    it.state.is_calling_back = False
    assert seqs(it.write()) == [(0, 2)]


def test_messages_of_one_turn_of_the_loop_go_together() -> None:
    it = Sending()
    assert [it.state.begin_gathering(), it.state.begin_gathering()] == [True, False]
    assert [it.send("a"), it.send("b", MessageFields("k"))] == [0, 0]
    assert not it.state.has_work()
    assert it.state.end_gathering() == WRITE
    assert seqs(it.write()) == [(0, 2)]
    assert not Sending(batching_enabled=True).state.begin_gathering(), "batches end by count, bytes and time"


@pytest.mark.parametrize("size", [0, 1, 7, 8, 1024, 4096, 4097, 60_000])
@pytest.mark.parametrize(
    "fields", [None, MessageFields("k"), MessageFields("k", "o", {"a": "b", "c": "d"}, 5)], ids=str
)
def test_a_lone_message_is_the_block_that_a_batch_of_it_is(size: int, fields: MessageFields | None) -> None:
    it = Sending()
    it.state.schema_version = b"12345678"
    it.state.begun(opened("maker"))
    it.open()
    value = bytes(index % 251 for index in range(size))
    assert it.state.add(value, None, fields) == WRITE
    assert it.state.gathered == 0, "it was made a block at once"
    (block,) = it.state.unconfirmed
    general = BatchBuilder(BatchLimits(is_batching=False), it.clock)
    general.add(value, None, fields)
    general.seal()
    (batch,) = general.take_sealed()
    incarnation, _, _ = it.state.opening_numbers()
    buffers = batch.encode(
        incarnation=incarnation, entry_seq=0, producer_name="maker", schema_version=b"12345678"
    )
    assert b"".join(block.buffers) == b"".join(buffers)
    assert (block.entries, block.messages, block.size) == (1, 1, batch.payload_bytes)


def test_ids_go_on_whether_messages_become_blocks_at_once_or_gather() -> None:
    it = Sending()
    it.send("a")
    it.send("b")  # the first one is under way
    assert it.state.gathered == 1
    headers = it.write()
    assert [header.first_sequence_id for header in headers] == [0, 1]
    it.state.confirmed(receipts(0, 1))
    it.send("c", MessageFields(sequence_id=10))
    it.write()
    it.state.confirmed(receipts(2))
    it.send("d")
    assert [header.first_sequence_id for header in it.write()] == [11]
    assert [value for value, _ in it.call_back()] == ["a", "b", "c"]
    assert it.state.last_sequence_id == 10


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (bytes(100_000), None),
        (None, MessageFields("k")),
        (b"x", MessageFields("k", sequence_id=7)),
        (b"x", MessageFields("k", deliver_at=1 << 50)),
    ],
    ids=["size", "tombstone", "id", "delay"],
)
def test_a_message_with_more_to_look_at_does_not_become_a_block_at_once(
    value: bytes | None, fields: MessageFields | None
) -> None:
    it = Sending()
    it.state.add(value, None, fields)
    assert len(it.state.unconfirmed) == 0
    assert seqs(it.write()) == [(0, 1)]


@pytest.mark.parametrize(
    ("size", "fields"), [(6_000_000, None), (1, MessageFields("k" * 6_000_000))], ids=["value", "key"]
)
def test_a_lone_message_that_is_too_big_is_refused(size: int, fields: MessageFields | None) -> None:
    it = Sending()
    with pytest.raises(MessageTooBig):
        it.state.add(bytes(size), None, fields)
    assert it.state.gathered == len(it.state.unconfirmed) == 0
    assert it.state.add(b"next", None) == WRITE
    assert [header.first_sequence_id for header in it.write()] == [0]


# --- batches ---------------------------------------------------------------------------------------


def test_batches_are_finished_by_count_and_by_who_waits() -> None:
    it = Sending(batching_enabled=True, batching_max_messages=2)
    assert [it.send("a"), it.send("b"), it.send("c")] == [TIME, WRITE, 0]
    assert seqs(it.write()) == [(0, 2)]
    assert it.send("d", is_awaited=True) == WRITE
    assert it.send("e", is_awaited=True) == WRITE
    assert seqs(it.write()) == [(1, 2), (2, 1)]


def test_a_batch_is_finished_when_its_delay_is_over() -> None:
    it = Sending(batching_enabled=True, batching_max_publish_delay_ms=10)
    assert it.send("a") == TIME
    assert it.state.batch_due_s == 0.01
    it.clock.advance(10)
    assert it.state.time_passed() == WRITE
    assert seqs(it.write()) == [(0, 1)]
    assert it.send("b") == TIME


def test_one_call_is_asked_for_all_batches_that_are_opened_meanwhile() -> None:
    it = Sending(batching_enabled=True, batching_max_publish_delay_ms=10)
    assert it.send("a") == TIME
    it.state.flushed()
    it.clock.advance(4)
    assert it.send("b") == 0
    it.clock.advance(6)
    assert it.state.time_passed() == WRITE | TIME
    assert it.state.batch_due_s == 0.004, "the rest of its own delay"
    it.clock.advance(4)
    assert it.state.time_passed() == WRITE
    assert [it.state.gathered, it.state.time_passed()] == [0, WRITE]


def test_plain_messages_and_others_share_a_batch_within_its_limits() -> None:
    it = Sending(batching_enabled=True, batching_max_allowed_size_in_bytes=10)
    assert it.send("aaaa") == TIME
    assert it.send("bbbb", MessageFields("k")) == 0
    assert it.send("cc") == WRITE
    assert it.send("dddddddd") == 0
    assert it.send("eeee") == WRITE, "it did not fit behind the one before"
    assert seqs(it.write()) == [(0, 3), (1, 1)]
    assert it.state.gathered == 1


def test_a_batch_that_time_finishes_without_a_carrier_waits_for_the_partition() -> None:
    it = Sending(batching_enabled=True, batching_max_publish_delay_ms=10, send_timeout_millis=1000)
    it.state.carrier_lost()
    it.send("a")
    it.clock.advance(10)
    it.state.time_passed()
    assert [len(it.state.unconfirmed), it.state.has_pending, it.state.has_work()] == [1, True, False]
    it.clock.advance(1001)
    assert it.state.has_expired()
    assert it.open("second") == WRITE
    assert seqs(it.write()) == [(0, 1)]


# --- the carrier and the partition -----------------------------------------------------------------


def test_blocks_without_a_receipt_are_written_again_with_their_numbers() -> None:
    it = Sending()
    it.send("a")
    it.send("b")
    it.write()
    it.state.confirmed(receipts(0))
    it.state.carrier_lost()
    assert (it.state.phase, it.state.carrier) == (CLOSED, None)
    assert it.send("c") == WRITE
    assert not it.state.has_work()
    assert it.state.next_block() is None
    assert it.state.opening_numbers()[2] == 1
    assert it.open("second") == WRITE
    work = it.state.next_block()
    assert work is not None
    block, carrier = work
    on: Any = carrier
    assert (block.entry_seq, on) == (1, "second")
    assert seqs(it.write()) == [(2, 1)]
    it.state.confirmed(receipts(1, 2))
    it.state.confirmed(receipts(1, 2))  # twice is harmless
    assert it.call_back() == [("a", 0), ("b", 10), ("c", 20)]


def test_a_carrier_lost_between_taking_a_block_and_its_receipt_keeps_the_order() -> None:
    it = Sending()
    for value in ("a", "b"):
        it.send(value)
        it.write()
    it.send("c")
    it.state.carrier_lost()
    it.open("second")
    assert [seq for seq, _ in seqs(it.write())] == [0, 1, 2]
    it.state.confirmed(receipts(1))  # a receipt may overtake an earlier one; its callback may not
    assert it.call_back() == []
    it.state.confirmed(receipts(0))
    assert it.call_back() == [("a", 0), ("b", 10)]


def test_answers_of_a_lost_carrier_do_not_count() -> None:
    it = Sending()
    it.send("a")
    it.write()
    it.state.carrier_lost()
    assert it.state.confirmed(receipts(0)) == 0
    assert it.state.refused(0, DiskSpaceLow("full")) == 0
    assert it.state.partly_stored(0, 5) == 0
    it.open("second")
    it.state.confirmed(receipts(0))
    assert it.call_back() == [("a", 0)]


def test_a_refused_block_fails_alone_and_in_its_place() -> None:
    it = Sending()
    it.send("a")
    it.send("b")
    it.write()
    assert it.state.refused(1, DiskSpaceLow("full")) == SETTLED | WRITE
    assert it.call_back() == []
    it.state.confirmed(receipts(0))
    assert it.call_back() == [("a", 0), ("b", DiskSpaceLow("").result)]
    assert it.state.last_sequence_id == 0


def test_starting_over_fails_everything_and_counts_anew_in_place_of_the_old_incarnation() -> None:
    it = Sending()
    for value in ("a", "b", "c", "d"):
        it.send(value)
        it.write()
    old = it.state.opening_numbers()[0]
    assert it.state.started_over(Timeout("late")) == SETTLED
    assert it.call_back() == [(value, Timeout("").result) for value in "abcd"]
    incarnation, replaced, first_seq = it.state.opening_numbers()
    assert (incarnation != old, replaced, first_seq) == (True, old, 0)
    assert it.state.confirmed(receipts(0)) == 0, "of the old incarnation"
    it.send("e")
    it.open()
    assert it.state.opening_numbers() == (incarnation, 0, 0)
    assert [(header.incarnation, header.entry_seq) for header in it.write()] == [(incarnation, 0)]


def test_starting_over_again_before_it_is_open_replaces_the_incarnation_that_the_partition_knows() -> None:
    it = Sending()
    it.send("a")
    it.write()
    known = it.state.opening_numbers()[0]
    it.state.started_over(Timeout("late"))
    incarnation = it.state.opening_numbers()[0]
    it.send("b")
    it.state.started_over(Timeout("late"))
    assert it.state.opening_numbers() == (incarnation, known, 0)
    it.send("c")
    it.open()
    assert [(header.incarnation, header.entry_seq) for header in it.write()] == [(incarnation, 0)]


def test_after_its_end_everything_raises_its_reason() -> None:
    it = Sending(batching_enabled=True)
    it.send("a")
    assert it.state.ended(AlreadyClosed("closed")) == SETTLED
    assert it.call_back() == [("a", AlreadyClosed("").result)]
    for call in (it.state.raise_if_ended, lambda: it.send("b"), lambda: it.state.admit(0, 1)):
        with pytest.raises(AlreadyClosed):
            call()
    assert it.open() == 0
    it.state.carrier_lost()
    it.state.started_over(Timeout("late"))
    assert it.state.phase is ENDED


def test_before_the_partition_answers_nothing_is_taken() -> None:
    it = Sending(is_open=False, producer_name="given")
    assert (it.state.phase, it.state.producer_name) == (UNANSWERED, "given")
    it.state.unanswered(WrongNode("its node is away"))
    with pytest.raises(WrongNode, match="its node is away"):
        it.send("a")
    assert not it.state.takes_keyless
    assert [it.state.flushed(), it.state.gathered, len(it.state.unconfirmed)] == [WRITE, 0, 0]
    it.state.carrier_lost()
    assert it.state.phase is UNANSWERED
    assert it.open() == WRITE
    assert (it.state.phase, it.state.producer_name) == (OPEN, "maker")
    assert it.send("a") == WRITE


def test_keyless_messages_come_to_one_that_has_answered_though_the_answers_carrier_is_lost() -> None:
    it = Sending(is_open=False)
    it.clock.advance(int((PATIENCE_S + 1) * 1000))
    it.state.begun(opened("maker"))
    assert it.state.takes_keyless
    it.clock.advance(int((PATIENCE_S + 1) * 1000))
    assert not it.state.takes_keyless


def test_a_partition_that_is_known_to_be_away_refuses_while_it_is_not_open() -> None:
    it = Sending()
    it.partition.absence = WrongNode("a late word")
    assert it.state.call() == 0
    assert it.state.absence is None
    it.state.carrier_lost()
    with pytest.raises(WrongNode, match="a late word"):
        it.send("a")
    assert not it.state.takes_keyless


@pytest.mark.parametrize(
    ("silent_s", "is_parked", "takes"),
    [(0.0, False, True), (PATIENCE_S + 1, False, False), (PATIENCE_S + 1, True, True)],
)
def test_keyless_messages_come_for_a_while_after_the_carrier_is_lost_and_to_one_that_sleeps(
    silent_s: float, is_parked: bool, takes: bool
) -> None:
    it = Sending()
    it.state.carrier_lost()
    it.clock.advance(int(silent_s * 1000))
    it.partition.is_parked = is_parked
    assert it.state.takes_keyless == takes


@pytest.mark.parametrize(
    ("silent_s", "unconfirmed", "is_new"),
    [(0.0, False, False), (SILENCE_S + 1, False, True), (SILENCE_S + 1, True, False)],
)
def test_a_partition_that_sleeps_is_woken_and_after_long_silence_counted_for_anew(
    silent_s: float, unconfirmed: bool, is_new: bool
) -> None:
    it = Sending()
    former = it.state.opening_numbers()[0]
    if unconfirmed:
        it.fill()
    it.state.carrier_lost()
    it.clock.advance(int(silent_s * 1000))
    it.partition.is_parked = True
    assert it.send("a") & ATTACH
    assert (it.state.opening_numbers()[0] != former) == is_new
    it.partition.is_parked = False
    assert not it.send("b") & ATTACH


def test_it_goes_on_behind_what_earlier_producers_of_the_name_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def begun(stored_id: int, initial_id: int | None = None) -> int:
        it = Sending(is_open=False, initial_sequence_id=initial_id)
        it.state.begun(ProducerOpened(1, "maker", -1, stored_id, 5_000_000, 1))
        return it.state.last_sequence_id

    assert [begun(41), begun(-1, 99)] == [41, 99]
    assert not caplog.messages
    assert begun(41, 9) == 41
    [warning] = caplog.messages
    assert "'maker'" in warning
    assert "id 10," in warning
    assert "up to 41" in warning


# --- room ------------------------------------------------------------------------------------------


def test_it_knows_how_many_messages_fit_without_another_look() -> None:
    it = Sending(max_pending_messages=3)
    it.send("a")
    assert (it.state.sure, it.state.room_left) == (2, 2)
    it.send("b")
    it.send("c")
    assert (it.state.sure, it.state.room_left) == (0, 0)
    assert it.send("d") == FULL
    assert "max_pending_messages=3" in str(it.state.full_error())
    assert it.state.look_for_room(1, 0) & FULL
    it.write()
    it.state.confirmed(receipts(0))
    assert it.state.look_for_room(1, 0) == 0
    assert it.send("d") == WRITE


def test_while_the_partition_is_not_open_each_message_looks() -> None:
    it = Sending()
    it.state.carrier_lost()
    it.send("a")
    assert it.state.sure == 0
    it.partition.absence = WrongNode("away")
    with pytest.raises(WrongNode):
        it.send("b")


def test_what_is_open_is_finished_for_room() -> None:
    it = Sending(batching_enabled=True, max_pending_messages=2)
    it.send("a")
    it.send("b")
    assert it.send("c") == FULL
    assert it.state.look_for_room(1, 0) == FULL | WRITE
    assert [it.state.gathered, len(it.state.unconfirmed)] == [0, 1]
    assert it.state.look_for_room(1, 0) == FULL


def test_a_wait_for_room_ends_with_the_producer_and_when_it_starts_over() -> None:
    it = Sending(max_pending_messages=1)
    it.send("a")
    assert it.send("b") == FULL
    assert it.state.started_over(Timeout("late")) & WAKE
    assert it.state.look_for_room(1, 0) == 0
    assert it.send("b") == WRITE
    assert it.send("c") == FULL
    assert it.state.ended(AlreadyClosed("closed")) & WAKE
    with pytest.raises(AlreadyClosed):
        it.state.look_for_room(1, 0)


def test_without_a_limit_of_messages_bytes_still_count() -> None:
    it = Sending(max_pending_messages=0)
    it.fill(1000)
    assert it.state.room_left == UNLIMITED
    it.fill(1, MAX_UNCONFIRMED_BYTES)
    assert it.state.room_left == 0
    assert it.state.admit(0, 1) == FULL


def test_a_block_above_the_limit_of_bytes_fits_alone() -> None:
    it = Sending(max_pending_messages=2)
    assert it.state.admit(0, 2 * MAX_UNCONFIRMED_BYTES) == 0
    it.fill(2)
    assert it.state.admit(0, 2 * MAX_UNCONFIRMED_BYTES) == FULL
    assert it.state.admit(0, 10) == 0, "it is no message of max_pending_messages"
    assert it.state.admit(1, 10) == FULL


def test_blocks_that_fill_the_queue_make_the_next_message_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_state, "MAX_UNCONFIRMED_BYTES", 10)
    it = Sending(batching_enabled=True)
    it.send("small")
    it.state.flushed()
    assert it.state.sure > 0
    it.send("larger than the rest")
    it.state.flushed()
    assert it.state.sure == 0
    assert it.send("c") == FULL


# --- turns -----------------------------------------------------------------------------------------


def test_a_finished_batch_gives_the_turn_away_and_messages_in_turn_go_with_it() -> None:
    it = Sending(batching_enabled=True, batching_max_messages=2)
    turns = it.turns()
    assert it.send("a", in_turn=True) == TIME
    assert it.send("b", in_turn=True) == WRITE
    assert turns.current == 1
    assert it.send("c", in_turn=True) == ELSEWHERE
    it.send("d")
    assert turns.current == 1, "a batch without messages in turn ends none"


def test_a_message_in_turn_that_does_not_fit_ends_the_turn() -> None:
    it = Sending(batching_enabled=True, batching_max_allowed_size_in_bytes=10)
    turns = it.turns()
    it.send("aaaaaa", in_turn=True)
    assert it.send("bbbbbb", in_turn=True) == ELSEWHERE | WRITE
    assert turns.current == 1
    assert seqs(it.write()) == [(0, 1)]


def test_a_message_in_turn_goes_elsewhere_instead_of_waiting() -> None:
    it = Sending(batching_enabled=True, max_pending_messages=2)
    turns = it.turns()
    it.send("a", in_turn=True)
    it.send("b", in_turn=True)
    assert it.send("c", in_turn=True) == ELSEWHERE | WRITE
    assert (turns.current, it.state.sure) == (1, 0)


def test_a_silent_partition_passes_its_turn_on() -> None:
    it = Sending(batching_enabled=True)
    turns = it.turns()
    it.state.carrier_lost()
    it.clock.advance(int(PATIENCE_S * 1000) + 1)
    assert it.send("a", in_turn=True) == ELSEWHERE
    assert turns.current == 1


def test_a_whole_batch_from_elsewhere_ends_an_open_turn_only() -> None:
    it = Sending(batching_enabled=True)
    turns = it.turns()
    it.send("a", MessageFields("k"))
    it.state.turn_ended()
    assert (turns.current, it.state.gathered) == (0, 1)
    it.send("b", in_turn=True)
    it.state.turn_ended()
    assert (turns.current, it.state.gathered) == (1, 0)


# --- blocks from elsewhere, chunks, flushes --------------------------------------------------------


def test_a_block_from_elsewhere_comes_behind_what_was_added_and_takes_its_ids() -> None:
    it = Sending(batching_enabled=True)
    it.send("a")
    it.send("b")
    incarnation = it.state.opening_numbers()[0]
    assert it.encoded() == [incarnation, 1, "maker", 2]
    assert it.encoded() == [incarnation, 3, "maker", 5]
    for _ in range(3):
        it.state.next_block()
    it.state.confirmed(receipts(0, 1))
    it.state.refused(3, DiskSpaceLow("full"))
    told = it.call_back()
    assert [value for value, _ in told] == ["a", "b", "block", "block"]
    assert told[2][1] is None
    assert isinstance(told[3][1], DiskSpaceLow)
    assert it.state.last_sequence_id == 4


def test_chunks_come_behind_what_was_added_and_share_one_id_and_one_callback() -> None:
    it = Sending(batching_enabled=False, chunking_enabled=True, chunk_max_message_size=1000)
    it.state.is_calling_back = True
    it.send("a")
    message = it.state.limits.cut(b"x" * 2500, None)
    assert message is not None
    assert it.state.admit(1, message.size) == 0
    assert it.state.add_chunks(message, None, lambda *_: it.told.append(("chunked", None))) == WRITE
    it.send("b")
    it.state.is_calling_back = False
    it.state.flushed()
    ids = [(header.entry_seq, header.first_sequence_id) for header in it.write()]
    assert ids == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 2)]
    it.state.confirmed(receipts(0, 1, 2))
    assert it.call_back() == [("a", 0)]
    it.state.confirmed(receipts(3, 4))
    assert it.call_back() == [("chunked", None), ("b", 40)]


def test_each_chunk_has_the_whole_send_timeout_from_its_writing_on() -> None:
    it = Sending(chunking_enabled=True, chunk_max_message_size=1000, send_timeout_millis=1000)
    message = it.state.limits.cut(b"x" * 2500, None)
    assert message is not None
    it.state.add_chunks(message, None, None)
    it.state.next_block()
    it.clock.advance(900)
    it.state.next_block()
    it.state.confirmed(receipts(0))
    it.clock.advance(900)
    assert not it.state.has_expired()
    it.clock.advance(101)
    assert it.state.has_expired()


def test_a_row_that_was_admitted_is_a_block_of_its_own() -> None:
    it = Sending(batching_enabled=True)
    it.send("a")
    assert it.state.add_alone(b"row", lambda *_: None, MessageFields("k")) == WRITE
    assert it.state.gathered == 0


@pytest.mark.parametrize("batching_enabled", [False, True])
def test_messages_expire_by_the_time_of_their_block(batching_enabled: bool) -> None:
    it = Sending(batching_enabled=batching_enabled, send_timeout_millis=1000)
    assert not it.state.has_expired()
    it.state.carrier_lost()
    it.send("a")
    if batching_enabled:
        it.state.flushed()
    it.state.has_expired()
    it.clock.advance(1000)
    assert not it.state.has_expired()
    it.clock.advance(1)
    assert it.state.has_expired()


def test_a_flush_is_settled_behind_the_callbacks_of_what_was_added_before() -> None:
    it = Sending(batching_enabled=True)
    it.send("a")
    assert it.state.when_settled(lambda: it.told.append(("settled", None))) == WRITE
    it.write()
    it.state.confirmed(receipts(0))
    # The block is not called back yet: a second flush must not overtake it.
    assert it.state.when_settled(lambda: it.told.append(("again", None))) == COMPLETE | WRITE
    assert it.call_back() == [("a", 0), ("settled", None), ("again", None)]


def test_what_was_stored_before_is_left_out_of_what_is_sent_again() -> None:
    it = Sending(batching_enabled=True)
    for value in ("a", "b", "c"):
        it.send(value)
    it.state.flushed()
    it.send("d", is_awaited=True)
    assert seqs(it.write()) == [(0, 3), (1, 1)]
    assert it.state.partly_stored(0, 1) == WRITE
    assert seqs(it.write()) == [(0, 1), (1, 1)]
    it.state.confirmed(receipts(0, 1))
    assert it.call_back() == [("a", -1), ("b", -1), ("c", 0), ("d", 10)]
