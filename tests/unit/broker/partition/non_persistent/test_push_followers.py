"""A partition that pushes: windows, drops for one follower alone, re-attachment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from pulsar_ray.broker.partition.non_persistent.push_followers import (
    MAX_BODY_BYTES,
    WINDOW_BYTES,
    PushFollowers,
    messages_of,
)
from pulsar_ray.errors import PulsarException
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import Follow, Pushed, decode_request
from pulsar_ray.session.session_table import Session
from tests.stored_blocks import block

EPOCH = 42
KIB = 1024


class Pipe:
    """A carrier that keeps what it is given."""

    is_peer_stopped = False
    kind = "test"
    unsent_bytes = 0

    def __init__(self) -> None:
        self.packets: list[Pushed] = []
        self.bodies: list[bytes] = []

    def send(self, buffers: Sequence[Any]) -> None:
        packet = decode_packet(b"".join(bytes(buffer) for buffer in buffers))
        request = decode_request(packet)
        assert isinstance(request, Pushed)
        self.packets.append(request)
        self.bodies.append(bytes(packet.body))

    def close(self, error: PulsarException | None = None) -> None: ...

    def retain(self, count: int) -> None: ...

    async def drained(self) -> None: ...

    def release(self, count: int) -> None: ...

    def hold_reading(self, *, held: bool) -> None: ...

    @property
    def messages(self) -> int:
        return sum(row[2] for packet in self.packets for row in packet.blocks)


class Follower:
    def __init__(self, followers: PushFollowers, session_id: int) -> None:
        self.followers = followers
        self.session = Session(session_id, f"f{session_id}", 0)
        self.reattach()

    def reattach(self) -> None:
        self.session.attachment += 1
        self.pipe = Pipe()
        self.session.carry_by(self.pipe)

    def tell(self, taken_bytes: int = 0, *, armed: bool = True, epoch: int = EPOCH) -> None:
        self.followers.follow(self.session, Follow(0, epoch, armed, taken_bytes, f"s{self.session.id}"))

    def dropped(self) -> int:
        found: int = self.followers.following(self.session)["dropped"]
        return found


def test_blocks_come_as_they_are_to_every_armed_follower() -> None:
    followers = PushFollowers(EPOCH)
    first, second, asleep = (Follower(followers, number) for number in (1, 2, 3))
    first.tell()
    second.tell()
    asleep.tell(armed=False)
    blocks = [block(0, rows=3), block(3), block(0, incarnation=9, size=5000)]
    assert followers.push(blocks) == set()
    expected = b"".join(bytes(buffer) for _, buffers in blocks for buffer in buffers)
    for follower in (first, second):
        assert b"".join(follower.pipe.bodies) == expected
        assert list(follower.pipe.packets[0].blocks) == [
            (header.total_length, header.entries, header.message_count) for header, _ in blocks
        ]
        assert follower.dropped() == 0
    assert asleep.pipe.packets == []
    assert asleep.dropped() == 5
    assert followers.subscriptions == ["s1", "s2", "s3"]


def test_a_follower_beyond_its_window_loses_messages_and_no_other_does() -> None:
    followers = PushFollowers(EPOCH)
    quick, slow = Follower(followers, 1), Follower(followers, 2)
    quick.tell()
    slow.tell()
    size = 512 * KIB
    count = WINDOW_BYTES // size
    for number in range(count + 5):
        blocks = [block(number, size=size - 100)]
        lost = followers.push(blocks)
        assert bool(lost) == (number >= count)
        quick.tell(quick.pipe.packets[-1].sent_bytes)
    assert quick.pipe.messages == count + 5
    assert slow.pipe.messages == count
    assert (quick.dropped(), slow.dropped()) == (0, 5)
    slow.tell(slow.pipe.packets[-1].sent_bytes)
    assert followers.push([block(count + 5)]) == set()
    assert slow.pipe.packets[-1].dropped_messages == 5


def test_packets_stay_below_their_limit() -> None:
    followers = PushFollowers(EPOCH)
    follower = Follower(followers, 1)
    follower.tell()
    followers.push([block(number, size=700 * KIB) for number in range(9)])
    assert follower.pipe.messages == 9
    assert max(map(len, follower.pipe.bodies)) <= MAX_BODY_BYTES
    follower.tell(follower.pipe.packets[-1].sent_bytes)
    followers.push([block(9, size=5 * KIB * KIB)])
    assert follower.pipe.messages == 10


def test_reports_of_another_life_or_beyond_the_end_open_nothing() -> None:
    followers = PushFollowers(EPOCH)
    follower = Follower(followers, 1)
    follower.tell()
    large = [block(number, size=5 * KIB * KIB) for number in range(4)]
    assert followers.push(large) == {3}
    follower.tell(1 << 60, epoch=EPOCH - 1)
    assert followers.push(large) == {0, 1, 2, 3}
    follower.tell(1 << 60)
    assert followers.push(large) == {3}


def test_what_a_lost_carrier_took_along_does_not_fill_the_window_for_ever() -> None:
    followers = PushFollowers(EPOCH)
    follower = Follower(followers, 1)
    follower.tell()
    large = [block(number, size=5 * KIB * KIB) for number in range(3)]
    followers.push(large)
    sent = follower.pipe.packets[-1].sent_bytes
    follower.session.carry_by(None)
    assert followers.push([block(3)]) == {0}
    follower.reattach()
    follower.tell()
    assert followers.push(large) == set()
    assert follower.pipe.packets[0].sent_bytes > sent
    assert follower.dropped() == 1


def test_a_new_session_of_the_same_dispatcher_goes_on_counting_upwards() -> None:
    followers = PushFollowers(EPOCH)
    old = Follower(followers, 1)
    old.tell()
    followers.push([block(0, size=3000), block(1)])
    highest = old.pipe.packets[-1].sent_bytes
    followers.forget(old.session)
    new = Follower(followers, 2)
    new.tell(highest)
    followers.push([block(2)])
    assert new.pipe.packets[0].sent_bytes > highest


def test_everything_pushed_is_sent_or_counted() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    followers = PushFollowers(EPOCH)
    follower = Follower(followers, 1)
    pushed = 0
    for number in range(200):
        follower.tell(
            rng.choice([packet.sent_bytes for packet in follower.pipe.packets] or [0]),
            armed=rng.random() < 0.9,
        )
        blocks = [block(number, size=rng.choice((10, 100_000, 3_000_000))) for _ in range(rng.randrange(3))]
        pushed += len(blocks)
        followers.push(blocks)
    assert follower.pipe.messages + follower.dropped() == pushed


def test_messages_are_counted_for_their_producers() -> None:
    blocks = [block(0, rows=3), block(3), block(0, incarnation=9, rows=2)]
    assert messages_of(blocks, {0, 2}) == {5: 3, 9: 2}
    assert messages_of(blocks, {0, 1}) == {5: 4}
