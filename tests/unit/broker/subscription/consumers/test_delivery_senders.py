"""Deliveries on their way out: places at once, bytes as fast as the carrier takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pulsar_ray.broker.subscription.consumers import connected_consumers
from pulsar_ray.broker.subscription.consumers.connected_consumers import (
    MAX_BODY_BYTES,
    MAX_GRANTS_PER_PACKET,
    MAX_UNSENT_BYTES,
    BytesSender,
    PlaceSender,
)
from pulsar_ray.broker.subscription.consumers.standing_notice import StandingNotice
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.errors import CorruptData, JournalDamaged, PulsarException, RemoteStoreUnavailable
from pulsar_ray.lane.serving.server_lane import DrainSignal
from pulsar_ray.ledger.reader import SegmentGone


def grant(number: int, length: int = 100) -> Grant:
    return Grant(7, number, BlockRef(1, 0, 0, length, number, 1, 1, False), 1, 0, False, ())


class Notice(StandingNotice):
    """Notes what the consumer is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int]] = []

    def failed(self, error: BaseException | None, generation: int, now_s: float) -> None:
        self.said.append((f"failed: {error}", generation))

    def went_on(self, generation: int) -> None:
        self.said.append(("went on", generation))

    def has_no_bytes(self, error: PulsarException, generation: int, number: int) -> None:
        self.said.append((f"{number}: {error.text}", generation))


class Played:
    """Plays session, carrier, encoder and disk; `unreadable` are numbers of grants that cannot be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.carrier: Any = self
        self.unsent_bytes = 0
        self.drain = DrainSignal()
        self.waits = 0
        self.packets: list[tuple[int, list[int], int]] = []
        self.lengths: list[int] = []
        self.unreadable: dict[int, Exception] = {}
        self.read: list[list[int]] = []
        self.notice = Notice()
        monkeypatch.setattr(connected_consumers, "_read", self._read)

    async def drained(self) -> None:
        self.waits += 1
        await self.drain.wait()

    def encode(self, generation: int, grants: Sequence[Grant], body: Sequence[bytes] = ()) -> Any:
        self.lengths += [g.block.length for g in grants]
        return generation, [g.number for g in grants], len(body)

    def send(self, packet: Any) -> None:
        self.packets.append(packet)

    def encode_chunks(
        self, generation: int, of: Grant, first: int, chunks: Sequence[BlockRef], body: Sequence[bytes] = ()
    ) -> Any:
        return generation, [of.number, -first, *(ref.first_entry_id for ref in chunks)], len(body)

    def _read(self, _directory: str, refs: Sequence[BlockRef]) -> list[bytes]:
        self.read.append([ref.first_entry_id for ref in refs])
        for ref in refs:
            if ref.first_entry_id in self.unreadable:
                raise self.unreadable[ref.first_entry_id]
        return [b"x"] * len(refs)

    async def run(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return work()

    def bytes_sender(self) -> BytesSender:
        played: Any = self
        return BytesSender(played, played, "p/1", asyncio.get_running_loop(), played, self.notice)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


async def sent(sender: BytesSender) -> None:
    while sender.has_unsent:
        await asyncio.sleep(0)


def test_places_go_out_at_once_so_many_to_a_packet(played: Played) -> None:
    player: Any = played
    PlaceSender(player, player).send([grant(n) for n in range(MAX_GRANTS_PER_PACKET + 1)], 3)
    assert [(g, len(numbers), body) for g, numbers, body in played.packets] == [
        (3, MAX_GRANTS_PER_PACKET, 0),
        (3, 1, 0),
    ]


def test_bytes_of_a_generation_share_packets_up_to_their_bound(played: Played) -> None:
    async def run() -> None:
        sender = played.bytes_sender()
        sender.send([grant(1), grant(2)], 1)
        sender.send([grant(3, MAX_BODY_BYTES - 50), grant(4)], 2)
        await sent(sender)

    asyncio.run(run())
    assert played.packets == [(1, [1, 2], 2), (2, [3], 1), (2, [4], 1)]


def test_nothing_is_read_while_the_carrier_has_much_to_write(played: Played) -> None:
    async def run() -> None:
        played.unsent_bytes = MAX_UNSENT_BYTES + 1
        sender = played.bytes_sender()
        sender.send([grant(1)], 1)
        sender.send([grant(2)], 2)
        while not played.waits:
            await asyncio.sleep(0)
        assert (played.read, sender.has_unsent) == ([], True)
        sender.drop_below(2)
        played.unsent_bytes = 0
        played.drain.fire()
        await sent(sender)

    asyncio.run(run())
    assert played.packets == [(2, [2], 1)]


def test_an_unreadable_block_goes_without_bytes_and_alone(played: Played) -> None:
    async def run() -> None:
        played.unreadable = {2: CorruptData("1-0", 0, "flipped")}
        sender = played.bytes_sender()
        sender.send([grant(1), grant(2), grant(3)], 1)
        await sent(sender)

    asyncio.run(run())
    assert played.packets == [(1, [1], 1), (1, [2], 0), (1, [3], 1)]
    assert played.lengths == [100, 100, 100]
    assert [said for said, _ in played.notice.said] == ["2: 1-0 is corrupt at byte 0: flipped"]


def test_what_is_only_in_an_object_store_that_is_away_is_waited_for_and_said(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected_consumers, "RETRY_REMOTE_S", 0.001)

    async def run() -> None:
        played.unreadable = {2: RemoteStoreUnavailable("away")}
        sender = played.bytes_sender()
        sender.send([grant(1), grant(2)], 1)
        while len(played.notice.said) < 2:
            await asyncio.sleep(0)
        played.unreadable = {}
        await sent(sender)

    asyncio.run(run())
    assert played.packets == [(1, [1, 2], 2)]
    assert set(played.notice.said[:-1]) == {("failed: RemoteStoreUnavailable: away", 1)}
    assert played.notice.said[-1] == ("went on", 1)


def test_what_cannot_be_read_does_not_outlast_its_queue(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected_consumers, "RETRY_REMOTE_S", 0.001)

    async def run() -> None:
        played.unreadable = {1: RemoteStoreUnavailable("away")}
        sender = played.bytes_sender()
        sender.send([grant(1)], 1)
        await asyncio.sleep(0)  # it is being read now
        sender.drop_below(2)
        sender.send([grant(2)], 2)
        await sent(sender)

    asyncio.run(run())
    assert played.packets == [(2, [2], 1)]


def test_damage_in_the_object_store_is_named_to_the_consumer(played: Played) -> None:
    async def run() -> None:
        played.unreadable = {1: JournalDamaged("1-0 is gone")}
        sender = played.bytes_sender()
        sender.send([grant(1)], 5)
        await sent(sender)

    asyncio.run(run())
    assert (played.packets, played.notice.said) == ([(5, [1], 0)], [("1: 1-0 is gone", 5)])


@pytest.mark.parametrize(("last_trimmed", "length"), [(0, 100), (1, 0)])
def test_a_segment_that_is_gone_is_damage_unless_it_was_trimmed(
    played: Played, monkeypatch: pytest.MonkeyPatch, last_trimmed: int, length: int
) -> None:
    monkeypatch.setattr(connected_consumers, "last_trimmed_ledger", lambda _: last_trimmed)

    async def run() -> None:
        played.unreadable = {1: SegmentGone("gone")}
        sender = played.bytes_sender()
        sender.send([grant(1)], 1)
        await sent(sender)

    asyncio.run(run())
    assert (played.packets, played.lengths) == ([(1, [1], 0)], [length])


def test_an_ended_sender_sends_nothing_more(played: Played) -> None:
    async def run() -> None:
        sender = played.bytes_sender()
        sender.send([grant(1)], 1)
        await asyncio.sleep(0)
        sender.end()
        await sent(sender)

    asyncio.run(run())
    assert played.packets == []


def test_bytes_that_were_read_for_a_lost_carrier_are_not_sent(played: Played) -> None:
    async def run() -> None:
        sender = played.bytes_sender()
        sender.send([grant(1)], 1)
        await asyncio.sleep(0)
        played.carrier = None
        await sent(sender)

    asyncio.run(run())
    assert played.packets == []


def chunked(number: int, entries: Sequence[int], length: int) -> Grant:
    """A message whose chunks are these entries, with the last one in the grant."""
    of_message = grant(number, length)
    chunks = tuple(BlockRef(1, 0, 0, length, entry, 1, 1, False) for entry in entries[:-1])
    return of_message._replace(
        block=of_message.block._replace(chunks=chunks, first_entry_id=entries[-1], length=length)
    )


def test_chunks_go_before_the_last_one_of_their_message_a_few_at_a_time(played: Played) -> None:
    async def run() -> None:
        sender = played.bytes_sender()
        sender.send([grant(1), chunked(2, [7, 8, 9, 10], MAX_BODY_BYTES // 2), grant(3)], 1)
        await sent(sender)

    asyncio.run(run())
    assert played.packets == [
        (1, [1], 1),
        (1, [2, 0, 7, 8], 2),
        (1, [2, -2, 9], 1),
        (1, [2], 1),
        (1, [3], 1),
    ]


def test_their_places_go_before_it_in_one_packet(played: Played) -> None:
    player: Any = played
    PlaceSender(player, player).send([grant(1), chunked(2, [7, 8, 9], 100)], 1)
    assert played.packets == [(1, [2, 0, 7, 8], 0), (1, [1, 2], 0)]
