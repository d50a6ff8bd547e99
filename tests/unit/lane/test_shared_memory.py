from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import ProtocolError
from pulsar_ray.format.block_memory import BlockMemory
from pulsar_ray.kernel_calls import MFD_ALLOW_SEALING, memfd_create
from pulsar_ray.lane import shared_memory
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.shared_memory import (
    IN_MEMORY,
    MEMORY,
    MIN_SHARED_BYTES,
    SLOT_BYTES,
    SLOTS,
    SLOTS_FOR_COPIES,
    BorrowedMemory,
    LentMemory,
    MemoryLender,
)
from pulsar_ray.session.packet import Packet, decode_packet, encode_packet
from tests.unit.lane.server_thread import ECHO, HELLO_FIELDS, Receiver, ServerThread

BODY = bytes(range(256)) * 256


@pytest.fixture
def lent() -> Iterator[LentMemory]:
    lent = LentMemory()
    yield lent
    lent.close()


@pytest.fixture
def borrowed() -> BorrowedMemory:
    return BorrowedMemory(os.getpid(), os.geteuid(), BlockMemory())


def parsed(buffers: Any) -> Packet:
    return decode_packet(b"".join(map(bytes, buffers)))


def put(lent: LentMemory, number: int, body: bytes = BODY) -> Packet | None:
    """What the socket would carry for a packet; None if that goes as it is."""
    packet = encode_packet(ECHO, (number,), [body])
    short = lent.put(packet, sum(map(len, packet)))
    return None if short is None else parsed(short)


def lend(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    assert borrowed.taken_out([parsed(lent.offer())]) == []


def test_packets_come_out_as_they_were_put_in(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    lend(lent, borrowed)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    kept = []
    for number in range(40):
        body = rng.randbytes(rng.choice([0, 1, 100_000, SLOT_BYTES - 100]))
        short = put(lent, number, body)
        assert short is not None
        assert short.type == IN_MEMORY
        (packet,) = borrowed.taken_out([short])
        kept.append((number, body, packet))
    for number, body, packet in kept:
        assert packet.type == ECHO
        assert packet.fields == (number,)
        assert packet.body == body


def test_other_packets_keep_their_places(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    lend(lent, borrowed)
    small = Packet(ECHO, (7,), memoryview(b""))
    first, second = put(lent, 1), put(lent, 2)
    assert first is not None
    assert second is not None
    out = borrowed.taken_out([small, first, small, second])
    assert [packet.fields[0] for packet in out] == [7, 1, 7, 2]


def test_slots_are_free_only_when_the_packet_was_taken_out(
    lent: LentMemory, borrowed: BorrowedMemory
) -> None:
    assert put(lent, 0) is None  # nobody has taken the memory yet
    lend(lent, borrowed)
    waiting = [put(lent, number) for number in range(SLOTS)]
    assert all(waiting)
    assert put(lent, 99) is None
    (packet,) = borrowed.taken_out([waiting[2]])  # type: ignore[list-item]
    assert packet.fields == (2,)
    assert put(lent, 4) is not None
    assert put(lent, 99) is None


def test_what_was_taken_out_cannot_change(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    lend(lent, borrowed)
    short = put(lent, 1)
    assert short is not None
    (packet,) = borrowed.taken_out([short])
    put(lent, 2, b"x" * len(BODY))
    assert packet.body == BODY


def written(lent: LentMemory, value: int, length: int = 300_000) -> memoryview:
    room = lent.room(length)
    assert room is not None
    room[:] = bytes([value]) * length
    return room


def put_room(lent: LentMemory, number: int, body: Any) -> Packet | None:
    packet = encode_packet(ECHO, (number,), [b"before", body, b"behind"])
    short = lent.put(packet, sum(map(len, packet)))
    return None if short is None else parsed(short)


def test_a_body_that_was_written_there_is_sent_from_there(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    assert lent.room(300_000) is None  # nobody has taken the memory yet
    lend(lent, borrowed)
    for number in range(20):
        room = written(lent, number)
        for body in (room, room[8:]):
            short = put_room(lent, number, body)
            assert short is not None
            (packet,) = borrowed.taken_out([short])
            assert packet.fields == (number,)
            assert packet.body == b"before" + bytes([number]) * len(body) + b"behind"
        assert room[200:] == bytes([number]) * (len(room) - 200)


def test_a_part_of_what_was_written_can_be_sent(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    lend(lent, borrowed)
    room = written(lent, 1)
    room[:5] = b"start"
    short = put_room(lent, 1, room[: MIN_SHARED_BYTES + 1])
    assert short is not None
    (packet,) = borrowed.taken_out([short])
    assert packet.body == b"beforestart" + b"\1" * (MIN_SHARED_BYTES - 4) + b"behind"


def test_a_room_is_its_holder_s_also_when_its_packet_was_taken_out(
    lent: LentMemory, borrowed: BorrowedMemory
) -> None:
    lend(lent, borrowed)
    rooms = [written(lent, number) for number in range(SLOTS - SLOTS_FOR_COPIES)]
    assert lent.room(300_000) is None  # the rest is for packets that are copied
    for number, room in enumerate(rooms):
        short = put_room(lent, number, room)
        assert short is not None
        assert put_room(lent, number, room) is None  # it is on its way already
        borrowed.taken_out([short])
    for number in range(100):
        short = put(lent, number)
        assert short is not None
        borrowed.taken_out([short])
    assert [room[0] for room in rooms] == list(range(len(rooms)))
    del room, rooms[0]
    assert lent.room(300_000) is not None
    lent.close()
    assert rooms[-1][0] == len(rooms)


def test_what_was_written_for_a_lane_that_is_lost_goes_over_another(borrowed: BorrowedMemory) -> None:
    lost, lent = LentMemory(), LentMemory()
    lend(lost, BorrowedMemory(os.getpid(), os.geteuid(), BlockMemory()))
    lend(lent, borrowed)
    room = written(lost, 7)
    lost.close()
    short = put_room(lent, 1, room)
    assert short is not None
    (packet,) = borrowed.taken_out([short])
    assert packet.body == b"before" + b"\7" * len(room) + b"behind"


def test_no_room_for_more_than_a_slot(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    lend(lent, borrowed)
    assert lent.room(SLOT_BYTES) is None


def test_a_packet_larger_than_a_slot_goes_as_it_is(lent: LentMemory, borrowed: BorrowedMemory) -> None:
    lend(lent, borrowed)
    assert put(lent, 1, b"x" * SLOT_BYTES) is None


def test_memory_that_is_not_as_it_should_be_is_never_taken(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\0" * shared_memory._MEMORY_BYTES)
    nonce = b"\0" * 16
    with path.open("r+b") as cuttable:
        fifo, other_end = os.pipe()
        small = memfd_create("small")
        unsealed = memfd_create("unsealed", MFD_ALLOW_SEALING)
        os.ftruncate(unsealed, shared_memory._MEMORY_BYTES)
        for descriptor in (cuttable.fileno(), fifo, small, unsealed, 1 << 20, -1):
            borrowed = BorrowedMemory(os.getpid(), os.geteuid(), BlockMemory())
            assert borrowed.taken_out([Packet(MEMORY, (descriptor, nonce), memoryview(b""))]) == []
            with pytest.raises(ProtocolError):
                borrowed.taken_out([Packet(IN_MEMORY, (0, 1, 100, 0), memoryview(b""))])
        for descriptor in (fifo, other_end, small, unsealed):
            os.close(descriptor)
    assert path.read_bytes() == b"\0" * shared_memory._MEMORY_BYTES


def test_another_process_s_memory_under_that_number_is_not_taken(lent: LentMemory) -> None:
    borrowed = BorrowedMemory(os.getpid(), os.geteuid(), BlockMemory())
    offer = parsed(lent.offer())
    borrowed.taken_out([Packet(MEMORY, (offer.fields[0], b"another nonce..."), offer.body)])
    assert put(lent, 1) is None


@pytest.mark.parametrize(
    "fields",
    [
        (),
        (0, 1),
        (0, 1, 100),
        (SLOTS, 1, 100, 0),
        (-1, 1, 100, 0),
        (0, -1, 100, 0),
        (0, 1 << 64, 100, 0),
        (0, 1, 0, 0),
        (0, 1, SLOT_BYTES + 1, 0),
        (0, 1, SLOT_BYTES, 1),
        (0, 1, 100, -1),
        (0, 1, 100, SLOT_BYTES),
        (0, 1, 100, 0),  # no packet stands there
        ("0", 1, 100, 0),
        (0, 1.0, 100, 0),
        (0, 1, None, 0),
        (0, 1, 100, None),
    ],
)
def test_places_that_cannot_be(lent: LentMemory, borrowed: BorrowedMemory, fields: tuple[Any, ...]) -> None:
    lend(lent, borrowed)
    with pytest.raises(ProtocolError):
        borrowed.taken_out([Packet(IN_MEMORY, fields, memoryview(b""))])


@pytest.mark.parametrize("fields", [(), ("3", b""), (3,), (3, b"", 0)])
def test_offers_that_are_none(borrowed: BorrowedMemory, fields: tuple[Any, ...]) -> None:
    with pytest.raises(ProtocolError):
        borrowed.taken_out([Packet(MEMORY, fields, memoryview(b""))])


def test_only_large_whole_packets_are_shortened(borrowed: BorrowedMemory) -> None:
    lending = MemoryLender()
    small = encode_packet(ECHO, (1,), [b"x" * 1000])
    large = encode_packet(ECHO, (2,), [b"x" * MIN_SHARED_BYTES])
    assert lending.shortened(small) is small
    first = lending.shortened(large)
    assert first[-2:] == large  # behind the offer
    borrowed.taken_out([parsed(first[:-2])])
    two = [*large, *large]
    assert lending.shortened(two) is two
    (packet,) = borrowed.taken_out([parsed(lending.shortened(large))])
    assert packet.body == b"x" * MIN_SHARED_BYTES
    lending.close()
    assert lending.shortened(large) is large


def test_without_such_memory_everything_goes_through_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError("not in this sandbox")

    monkeypatch.setattr(shared_memory, "memfd_create", refuse)
    lending = MemoryLender()
    large = encode_packet(ECHO, (2,), [b"x" * MIN_SHARED_BYTES])
    assert list(lending.shortened(large)) == large
    assert lending.shortened(large) is large


def test_a_lane_uses_it_from_many_threads(tmp_path: Path) -> None:
    receiver = Receiver()
    with ServerThread(tmp_path) as server:
        connection = LaneConnection.connect(server.unix, HELLO_FIELDS, receiver)

        def work(worker: int) -> None:
            rng = random.Random(worker)
            for number in range(25):
                body = rng.randbytes(rng.choice([10, 50_000, 300_000, 1_000_000, 1_200_000]))
                connection.send(encode_packet(ECHO, (1000 * worker + number, len(body), hash(body)), [body]))

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        packets = receiver.journal.wait_for(lambda events: len(events) == 100)
        lending = connection._lending
        assert lending is not None
        assert lending._memory is not None
        assert any(lending._memory._numbers)
        connection.close()
    for packet in packets:
        assert (len(packet.body), hash(packet.body.tobytes())) == packet.fields[1:]
    for worker in range(4):
        numbers = [packet.fields[0] for packet in packets if packet.fields[0] // 1000 == worker]
        assert numbers == sorted(numbers)


def test_a_lane_whose_peer_cannot_be_reached_goes_through_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> Any:
        raise PermissionError("another process namespace")

    monkeypatch.setattr(shared_memory, "map_of", unreachable)
    receiver = Receiver()
    with ServerThread(tmp_path) as server:
        connection = LaneConnection.connect(server.unix, HELLO_FIELDS, receiver)
        for number in range(5):
            connection.send(encode_packet(ECHO, (number,), [BODY * 8]))
        packets = receiver.journal.wait_for(lambda events: len(events) == 5)
        connection.close()
    assert all(packet.body == BODY * 8 for packet in packets)
