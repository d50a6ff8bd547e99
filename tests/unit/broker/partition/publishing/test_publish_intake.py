"""Publishing at a partition: which blocks are admitted, how they are committed, and what is answered when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.producer_endpoint import WaitingBlocks
from pulsar_ray.broker.partition.publishing.publish_gate import ClosedBy, PublishGate, PublishThrottle
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake
from pulsar_ray.config import Settings
from pulsar_ray.errors import DiskSpaceLow, Fenced, ProtocolError, PulsarException, SessionLost
from pulsar_ray.format.block import parse_block_header
from pulsar_ray.format.metadata import BlockMetadata, ChunkInfo
from pulsar_ray.format.payload import encode_batch, encode_rows, encode_single
from pulsar_ray.managed_ledger.log.commit import LogEnd
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.memory_log import MemoryLog
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import OpenProducer, PublishFailed, Receipt, decode_request
from pulsar_ray.session.session_table import Session
from pulsar_ray.testing.manual_clock import ManualClock
from tests.stored_blocks import block, change, open_log

INCARNATION = 7


class Disk:
    """Writes when it is told to; the next writes fail with `errors`."""

    is_idle = False

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []
        self.errors: list[BaseException] = []

    def submit(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        self._events.append("begun")
        self._jobs.append((work, done))

    def write(self) -> None:
        """Finish the oldest write."""
        work, done = self._jobs.pop(0)
        if self.errors:
            done(None, self.errors.pop(0))
        else:
            done(work(), None)


class Pipe:
    """A carrier that notes which blocks were answered, and how many bytes are retained."""

    is_peer_stopped = False
    kind = "test"
    unsent_bytes = 0

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.retained_bytes = 0

    def send(self, buffers: Sequence[Any]) -> None:
        answer = decode_request(decode_packet(b"".join(bytes(buffer) for buffer in buffers)))
        if isinstance(answer, PublishFailed):
            self._events.append(f"refused {answer.entry_seq}: {answer.error}")
            return
        assert isinstance(answer, Receipt)
        self._events.append(f"answered {[row[1] for row in answer.blocks]}")

    def close(self, error: PulsarException | None = None) -> None: ...

    def retain(self, count: int) -> None:
        self.retained_bytes += count

    async def drained(self) -> None: ...

    def hold_reading(self, *, held: bool) -> None:
        self._events.append("held" if held else "read on")

    def release(self, count: int) -> None:
        self.retained_bytes -= count


class Partition:
    """An intake with one producer, whose incarnation is 7."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        log: MemoryLog | ManagedLedger | None = None,
        on_durable: Callable[[LogEnd], None] | None = None,
    ) -> None:
        self.fatal: list[BaseException] = []
        self.events: list[str] = []
        self.log = log or MemoryLog(1, lambda _: None)
        self.disk = Disk(self.events)
        clock = self.clock = ManualClock()
        self._loop = loop
        log, waiting = self.log, WaitingBlocks()
        policies = self.policies = PartitionPolicies(Settings())
        self.gate = PublishGate()
        self.producers = ConnectedProducers(log, waiting, policies, clock, "p")
        self.throttle = PublishThrottle(policies, clock, loop)
        self._intake = PublishIntake(
            log,
            self.producers,
            policies,
            self.gate,
            clock,
            loop,
            self.disk,
            waiting,
            self.throttle,
            on_readable=lambda _: self.events.append("followers told"),
            on_fatal=self.fatal.append,
            on_durable=on_durable,
        )
        self.confirm = self._intake.confirm
        self.figures = self._intake.figures
        self._session = Session(1, "client", clock.now_ms())
        self.pipe = Pipe(self.events)
        self._session.carry_by(self.pipe)
        self.producers.open(self._session, OpenProducer(1, 1, None, INCARNATION, 0, 0, 0, False))
        self._seq = 0

    def is_idle(self) -> bool:
        return self._intake.is_idle

    def publish(
        self, size: int = 100, *, is_awaited: bool = True, seq: int | None = None, of: int = INCARNATION
    ) -> None:
        """One block, in a turn of the loop of its own."""
        if seq is None:
            seq, self._seq = self._seq, self._seq + 1
        self.send(self.block(size, seq=seq, of=of), is_awaited=is_awaited)

    @staticmethod
    def block(size: int, *, seq: int, of: int) -> memoryview:
        """A block of one message, whose sequence id is its entry_seq."""
        buffers = encode_single(
            bytes(size),
            incarnation=of,
            entry_seq=seq,
            sequence_id=seq,
            publish_time_ms=5,
            metadata=BlockMetadata(producer_name="p-1-1"),
        )
        return memoryview(b"".join(bytes(buffer) for buffer in buffers))

    @staticmethod
    def chunk(number: int, *, seq: int) -> memoryview:
        """One of three chunks of a message."""
        _, buffers = block(
            seq, incarnation=INCARNATION, producer="p-1-1", chunk=ChunkInfo("p-1-1-1", number, 3, 120)
        )
        return memoryview(b"".join(bytes(buffer) for buffer in buffers))

    def send(self, body: memoryview, *, is_awaited: bool = True, producer_id: int = 1) -> None:
        self._intake.publish(self._session, producer_id, body, is_awaited=is_awaited)
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_answers_come_in_order_whatever_the_disk_does_meanwhile(size: int) -> None:
    loop = asyncio.new_event_loop()
    partition = Partition(loop)
    for _ in range(4):
        partition.publish(size)
    partition.disk.write()
    partition.publish(size)
    partition.disk.write()
    partition.disk.write()
    loop.close()
    answers = [event for event in partition.events if event.startswith("answered")]
    assert answers == ["answered [0]", "answered [1, 2, 3]", "answered [4]"]
    assert partition.events.count("followers told") == 3


def test_each_block_and_each_commit_is_counted_once() -> None:
    loop = asyncio.new_event_loop()
    partition = Partition(loop)
    for _ in range(4):
        partition.publish()
    partition.disk.write()
    partition.disk.write()
    partition.gate.set(ClosedBy.DISK_SPACE, DiskSpaceLow("the disk is full"))
    partition.publish()
    partition.publish()
    loop.close()
    figures = partition.figures
    *blocks, latency_s = figures.latency.numbers()
    assert sum(blocks) == 4
    assert latency_s > 0
    *commits, written_blocks = figures.commit_blocks.numbers()
    assert (sum(commits), written_blocks) == (2, 4)
    assert sum(figures.write_seconds.numbers()[:-1]) == 2
    assert {reason: count for reason, count in figures.refused.items() if count} == {"disk_space": 2}


def test_a_large_write_begins_before_the_last_one_is_answered() -> None:
    loop = asyncio.new_event_loop()
    partition = Partition(loop)
    partition.publish(1_000_000)
    partition.publish(1_000_000)
    partition.disk.write()
    loop.close()
    assert partition.events == ["begun", "begun", "answered [0]", "followers told"]


def test_followers_are_told_first_unless_somebody_stands_still_for_the_receipt() -> None:
    loop = asyncio.new_event_loop()
    partition = Partition(loop)
    for is_awaited in (False, True, False):
        partition.publish(100, is_awaited=is_awaited)
        partition.disk.write()
    loop.close()
    assert partition.events == [
        *("begun", "followers told", "answered [0]"),
        *("begun", "answered [1]", "followers told"),
        *("begun", "followers told", "answered [2]"),
    ]


@pytest.fixture
def partition() -> Iterator[Partition]:
    loop = asyncio.new_event_loop()
    yield Partition(loop)
    loop.close()


def test_a_closed_gate_refuses_blocks_with_its_own_error_and_nothing_before_or_after(
    partition: Partition,
) -> None:
    partition.publish()
    partition.gate.set(ClosedBy.DISK_SPACE, DiskSpaceLow("full"))
    partition.publish()
    partition.gate.set(ClosedBy.DISK_SPACE, None)
    partition.publish()
    partition.disk.write()
    partition.disk.write()
    assert [event for event in partition.events if event not in ("begun", "followers told")] == [
        "refused 1: DiskSpaceLow",
        "answered [0]",
        "answered [2]",
    ]


def test_a_size_that_is_lowered_holds_for_the_next_block(partition: Partition) -> None:
    partition.publish(1000)
    partition.policies.take(partition.policies.settings.replace(max_message_size=999))
    for size in (1000, 999):
        partition.publish(size)
    partition.policies.take(partition.policies.settings.replace(max_message_size=1000))
    partition.publish(1000)
    refused = [event for event in partition.events if event.startswith("refused")]
    assert refused == ["refused 1: MessageTooBig"]


def test_a_repeat_of_a_refused_block_is_refused_with_the_reason(partition: Partition) -> None:
    partition.policies.take(partition.policies.settings.replace(max_message_size=999))
    for _ in range(2):
        partition.publish(1000, seq=0)
    partition.policies.take(partition.policies.settings.replace(max_message_size=1000))
    partition.publish(1000, seq=0)
    assert partition.events == [
        *("refused 0: MessageTooBig", "refused 0: MessageTooBig"),
        "refused 0: BrokerPersistenceError",
    ]


@pytest.mark.parametrize(("size", "answer"), [(30_000, "refused 0: MessageTooBig"), (200, "answered [0]")])
def test_a_block_of_several_messages_is_judged_by_their_mean(
    partition: Partition, size: int, answer: str
) -> None:
    payload, columns = encode_rows([bytes(size)] * 20)
    buffers = encode_batch(
        payload,
        columns,
        message_count=20,
        incarnation=INCARNATION,
        entry_seq=0,
        first_sequence_id=0,
        last_sequence_id=19,
        publish_time_ms=5,
    )
    body = memoryview(b"".join(bytes(buffer) for buffer in buffers))
    partition.policies.take(partition.policies.settings.replace(max_message_size=200))
    assert len(body) > 20 * 200
    partition.send(body)
    if size == 200:
        partition.disk.write()
    assert answer in partition.events


def test_the_block_that_exceeds_a_rate_is_stored_and_no_more_is_read(partition: Partition) -> None:
    partition.policies.take(partition.policies.settings.replace(max_publish_rate_per_topic_in_messages=2))
    partition.throttle.settings_changed()
    for _ in range(2):
        partition.publish()
        partition.disk.write()
    assert partition.events.count("held") == 1, "the second message uses up what a second allows"
    assert partition.throttle.is_slowing
    partition.publish()
    partition.disk.write()
    assert partition.events.count("held") == 1
    assert [event for event in partition.events if event.startswith("answered")] == [
        f"answered [{seq}]" for seq in range(3)
    ], "packets that were read already are admitted"


def test_a_rate_that_is_removed_holds_nobody_back(partition: Partition) -> None:
    partition.policies.take(partition.policies.settings.replace(max_publish_rate_per_topic_in_bytes=1))
    partition.throttle.settings_changed()
    partition.publish()
    partition.throttle.settings_changed()
    assert "read on" not in partition.events, "the rate is as before"
    partition.policies.take(partition.policies.settings.replace(max_publish_rate_per_topic_in_bytes=0))
    partition.throttle.settings_changed()
    assert partition.events[-1] == "read on"
    assert not partition.throttle.is_slowing


def test_a_missing_block_ends_the_connection_and_admits_nothing(partition: Partition) -> None:
    partition.publish()
    with pytest.raises(SessionLost, match="entry_seq 1 is missing before 2"):
        partition.publish(seq=2)
    partition.disk.write()
    assert partition.events == ["begun", "answered [0]", "followers told"]


def test_blocks_of_others_and_half_blocks_are_a_broken_protocol(partition: Partition) -> None:
    with pytest.raises(ProtocolError, match="incarnation 8"):
        partition.publish(of=8)
    block = memoryview(
        b"".join(
            bytes(b)
            for b in encode_single(
                b"x" * 50, incarnation=INCARNATION, entry_seq=0, sequence_id=0, publish_time_ms=5
            )
        )
    )
    with pytest.raises(ProtocolError):
        partition.send(block[:-1])
    with pytest.raises(SessionLost, match="producer 2 is not open"):
        partition.send(block, producer_id=2)
    assert partition.events == []


def test_a_repeat_is_answered_once_it_is_durable_and_stored_once(partition: Partition) -> None:
    partition.publish(seq=0)
    partition.publish(seq=0)
    assert partition.events == ["begun"], "its receipt comes with the write that is under way"
    partition.disk.write()
    partition.publish(seq=0)
    assert partition.events == ["begun", "answered [0]", "followers told", "answered [0]"]


def test_a_failed_write_is_repeated_once_and_then_refused(partition: Partition) -> None:
    partition.disk.errors = [OSError("first"), OSError("second")]
    partition.publish()
    partition.publish()
    assert partition.pipe.retained_bytes > 0
    partition.disk.write()
    assert partition.events == ["begun", "begun"], "the same blocks go once into a new file"
    partition.disk.write()
    assert partition.events[2:] == ["refused 0: BrokerPersistenceError", "begun"]
    partition.disk.write()
    assert sorted(partition.events[4:]) == ["answered [1]", "followers told"]
    assert partition.pipe.retained_bytes == 0


@pytest.mark.parametrize("refused_by", ["disk", "gate"])
def test_the_rest_of_a_message_is_refused_behind_a_chunk_that_was(
    partition: Partition, refused_by: str
) -> None:
    """Its last chunk alone would pass for the message when that is sent again."""
    partition.publish(seq=0)
    partition.disk.write()
    del partition.events[:]
    if refused_by == "disk":
        partition.disk.errors = [OSError("first"), OSError("second")]
        partition.send(partition.chunk(0, seq=1))
        partition.disk.write()
    else:
        partition.gate.set(ClosedBy.DISK_SPACE, DiskSpaceLow("full"))
        partition.send(partition.chunk(0, seq=1))
        partition.gate.set(ClosedBy.DISK_SPACE, None)
    partition.send(partition.chunk(1, seq=2))
    if refused_by == "disk":
        partition.disk.write()
    partition.send(partition.chunk(2, seq=3))
    partition.publish(seq=4)
    answers = [event for event in partition.events if event.startswith(("refused", "answered"))]
    assert [answer[:9] for answer in answers] == ["refused 1", "refused 2", "refused 3"]
    assert all(answer.endswith("BrokerPersistenceError") for answer in answers[1:])
    partition.disk.write()
    assert partition.log.incarnations.last_entry_seq(INCARNATION) == 4
    assert partition.pipe.retained_bytes == 0


def test_a_refused_block_that_comes_again_is_refused_again(partition: Partition) -> None:
    partition.gate.set(ClosedBy.DISK_SPACE, DiskSpaceLow("full"))
    partition.publish(seq=0)
    partition.gate.set(ClosedBy.DISK_SPACE, None)
    partition.publish(seq=0)
    assert partition.events == ["refused 0: DiskSpaceLow", "refused 0: BrokerPersistenceError"]


def test_refused_blocks_that_come_again_are_all_refused_again(partition: Partition) -> None:
    partition.gate.set(ClosedBy.DISK_SPACE, DiskSpaceLow("full"))
    for _ in range(2):
        for seq in range(3):
            partition.publish(seq=seq)
    assert partition.events == [f"refused {seq}: DiskSpaceLow" for seq in (0, 1, 2, 0, 1, 2)]


def test_stored_messages_that_come_again_are_answered_however_often(partition: Partition) -> None:
    sequences = partition.log.sequences
    sequences.switch(on=True)
    sequences.record(parse_block_header(partition.block(100, seq=2, of=6)), now_ms=1)
    sequences.keep()
    for _ in range(2):
        for seq in range(3):
            partition.publish(seq=seq)
    assert partition.events == [f"answered [{seq}]" for seq in (0, 1, 2, 0, 1, 2)]


def test_a_fenced_partition_ends_and_answers_nothing(partition: Partition) -> None:
    partition.disk.errors = [Fenced("another owner")]
    partition.publish()
    partition.disk.write()
    assert [type(error) for error in partition.fatal] == [Fenced]
    assert partition.events == ["begun"]


def test_nobody_is_answered_who_gave_the_incarnation_up(partition: Partition) -> None:
    partition.publish()
    (producer,) = partition.producers.by_name.values()
    partition.producers.close(producer)
    partition.producers.open(producer.session, OpenProducer(2, 1, producer.name, 8, 0, 0, 0, True))
    partition.disk.write()
    assert partition.events == ["begun", "followers told"]
    assert partition.pipe.retained_bytes == 0


def test_what_is_durable_and_not_confirmed_is_answered_to_nobody(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    ends: list[LogEnd] = []
    log = open_log(tmp_path)
    partition = Partition(loop, log, ends.append)
    partition.publish()
    partition.disk.write()
    partition.publish()
    partition.disk.write()
    partition.publish(seq=0)  # a repeat: its receipt is to come
    assert [end.position for end in ends] == [log.last_position._replace(entry_id=0), log.last_position]
    assert partition.events == ["begun", "begun"]
    assert log.segments() == []
    assert partition.pipe.retained_bytes > 0
    assert not partition.is_idle()
    partition.confirm(ends[0])
    assert partition.events[2:] == ["answered [0]", "followers told"]
    assert log.readable_position == ends[0].position
    partition.confirm(ends[0])
    partition.confirm(ends[1])
    assert partition.events[4:] == ["answered [1]", "followers told"]
    assert partition.pipe.retained_bytes == 0
    assert partition.is_idle()
    partition.publish(seq=0)
    assert partition.events[6:] == ["answered [0]"]
    log.close()
    loop.close()


def test_a_later_end_confirms_all_before_it_in_order(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    ends: list[LogEnd] = []
    log = open_log(tmp_path)
    partition = Partition(loop, log, ends.append)
    for _ in range(3):
        partition.publish(is_awaited=False)
        partition.disk.write()
    partition.confirm(ends[-1])
    told = [
        "followers told",
        "answered [0]",
        "followers told",
        "answered [1]",
        "followers told",
        "answered [2]",
    ]
    assert partition.events[3:] == told
    log.close()
    loop.close()


def test_a_duplicate_is_answered_behind_the_messages_that_it_repeats(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    ends: list[LogEnd] = []
    log = open_log(tmp_path)
    change(log, log.changes.switch_deduplication(on=True))
    partition = Partition(loop, log, ends.append)
    partition.publish(seq=0)
    partition.disk.write()
    # The same sequence id as another block: a program that sends it anew.
    header, buffers = block(1, incarnation=INCARNATION, first_id=0, producer="p-1-1")
    assert header.last_sequence_id == 0
    partition.send(memoryview(b"".join(bytes(buffer) for buffer in buffers)))
    assert partition.events == ["begun"], "nothing is confirmed that readers cannot see"
    partition.confirm(ends[0])
    assert partition.events[1:] == ["answered [0]", "followers told", "answered [1]"]
    log.close()
    loop.close()


def test_a_duplicate_does_not_wait_for_what_is_stored_behind_it(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    ends: list[LogEnd] = []
    log = open_log(tmp_path)
    change(log, log.changes.switch_deduplication(on=True))
    partition = Partition(loop, log, ends.append)
    partition.publish(seq=0)
    partition.disk.write()
    _, buffers = block(1, incarnation=INCARNATION, first_id=0, producer="p-1-1")
    partition.send(memoryview(b"".join(bytes(buffer) for buffer in buffers)))
    partition.publish(seq=2)
    partition.disk.write()
    partition.confirm(ends[0])
    answered = ["begun", "begun", "answered [0]", "followers told", "answered [1]"]
    assert partition.events == answered, "the second group is not confirmed yet"
    log.close()
    loop.close()
