"""What a partition tells those that follow it, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from pulsar_ray.broker.partition.followers import MAX_HELD_BYTES, MAX_PAUSE_S, RETURN_S, Followers
from pulsar_ray.errors import PulsarException
from pulsar_ray.managed_ledger.log.commit import AppendResult, LogEnd
from pulsar_ray.model.message_id import LATEST, Position
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import Advanced, Follow, decode_request
from pulsar_ray.session.session_table import Session

LEDGER = 7
EPOCH = 3
HEADER = b"h" * 100


class ManualLoop:
    """The loop as far as followers use it; time passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> SimpleNamespace:
        timer = (when, callback)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer[0] <= self.now]:
            self.timers.remove(timer)
            timer[1]()


class Pipe:
    """A carrier that keeps what it is given."""

    is_peer_stopped = False
    kind = "test"

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.packets: list[Advanced] = []

    def send(self, buffers: Sequence[Any]) -> None:
        request = decode_request(decode_packet(b"".join(bytes(buffer) for buffer in buffers)))
        assert isinstance(request, Advanced)
        self.packets.append(request)

    def close(self, error: PulsarException | None = None) -> None: ...

    def retain(self, count: int) -> None: ...

    async def drained(self) -> None: ...

    def release(self, count: int) -> None: ...

    def hold_reading(self, *, held: bool) -> None: ...


class Rig:
    """Followers of a log without segments that commits advance by an entry."""

    def __init__(self, count: int) -> None:
        self.loop = ManualLoop()
        self.log = SimpleNamespace(
            epoch=EPOCH,
            state=SimpleNamespace(
                readable=LogEnd(Position(LEDGER, -1), 0, 0, 0),
                first_position=Position(LEDGER, 0),
                segments_version=1,
                readable_segments=list,
            ),
            changes=self,
        )
        loop: Any = self.loop
        self.followers = Followers(self.log, loop)  # type: ignore[arg-type]
        self.pipes = [Pipe() for _ in range(count)]
        self.sessions = [Session(number, f"f{number}", 0) for number in range(count)]
        for session, pipe in zip(self.sessions, self.pipes, strict=True):
            session.carry_by(pipe)
            self.follow(session)
        for pipe in self.pipes:
            pipe.packets.clear()

    compacted = None

    def subscription(self, _number: int) -> None:
        """Return none: nothing of these has expired."""

    def follow(self, session: Session, *, armed: bool = True) -> None:
        self.followers.follow(session, Follow(session.id, EPOCH, armed))

    def commit(self, header: bytes = HEADER) -> None:
        entry = self.log.state.readable.position.entry_id + 1
        end = self.log.state.readable = LogEnd(Position(LEDGER, entry), 0, 0, 0)
        frame = (LEDGER, 0, 1000 * entry, header)
        self.followers.advanced(AppendResult([end.position], [frame], end))

    def before(self, number: int = 0) -> list[int]:
        """The entry that the frames of each packet stand behind."""
        return [packet.before_entry_id for packet in self.pipes[number].packets if packet.frames]

    def told(self, number: int = 0) -> list[tuple[int, int]]:
        """(last entry, frames) of each packet to a follower."""
        return [(packet.entry_id, len(packet.frames)) for packet in self.pipes[number].packets]


def test_a_single_follower_is_told_of_each_commit_at_once() -> None:
    rig = Rig(1)
    for _ in range(3):
        rig.commit()
    assert rig.told() == [(0, 1), (1, 1), (2, 1)]


def test_several_are_told_at_once_after_a_pause_and_then_of_what_follows_together() -> None:
    rig = Rig(8)
    rig.commit()
    assert rig.told() == [(0, 1)]
    for _ in range(5):
        rig.commit()
    assert rig.told() == [(0, 1)]
    rig.loop.pass_time(MAX_PAUSE_S)
    assert [rig.told(number) for number in range(8)] == [[(0, 1), (5, 5)]] * 8
    rig.loop.pass_time(MAX_PAUSE_S)
    rig.commit()
    assert rig.told()[2:] == [(6, 1)]
    assert not rig.loop.timers


def test_who_stands_by_makes_nobody_wait() -> None:
    rig = Rig(8)
    for session in rig.sessions[1:]:
        rig.follow(session, armed=False)
    for _ in range(3):
        rig.commit()
    assert rig.told() == [(0, 1), (1, 1), (2, 1)]


def test_no_more_is_held_back_than_fits_a_small_packet() -> None:
    rig = Rig(8)
    rig.commit()
    rig.commit(b"h" * MAX_HELD_BYTES)
    assert rig.told() == [(0, 1), (1, 1)]


def test_an_answer_comes_behind_what_was_held_back() -> None:
    rig = Rig(2)
    rig.commit()
    rig.commit()
    rig.follow(rig.sessions[1])
    assert rig.told(0) == [(0, 1), (1, 1)]
    assert rig.told(1) == [(0, 1), (1, 1), (1, 0)]
    rig.commit()
    rig.followers.send_held()
    assert rig.told(0)[2:] == [(2, 1)]


def test_a_follower_that_does_not_read_is_left_out_and_told_later() -> None:
    rig = Rig(2)
    rig.pipes[0].unsent_bytes = 1 << 20
    rig.commit()
    rig.loop.pass_time(MAX_PAUSE_S)
    rig.commit()
    assert rig.told(0) == []
    assert rig.told(1) == [(0, 1), (1, 1)]
    rig.pipes[0].unsent_bytes = 0
    rig.followers.catch_up()
    assert rig.told(0) == [(1, 0)]


def test_each_packet_says_behind_which_entry_its_frames_stand() -> None:
    rig = Rig(8)
    for _ in range(4):
        rig.commit()
    rig.loop.pass_time(MAX_PAUSE_S)
    rig.commit()
    rig.loop.pass_time(MAX_PAUSE_S)
    assert rig.told(7) == [(0, 1), (3, 3), (4, 1)]
    assert rig.before(7) == [-1, 0, 3]


def test_a_follower_that_was_left_out_sees_what_it_missed() -> None:
    rig = Rig(1)
    rig.commit()
    rig.pipes[0].unsent_bytes = 1 << 20
    for _ in range(2):
        rig.commit()
    rig.pipes[0].unsent_bytes = 0
    rig.commit()
    assert rig.before() == [-1, 2]


def test_commits_before_the_first_follower_are_not_said_to_be_missing() -> None:
    rig = Rig(0)
    for _ in range(3):
        rig.commit()
    session, pipe = Session(0, "f0", 0), Pipe()
    session.carry_by(pipe)
    rig.follow(session)
    rig.commit()
    assert [packet.before_entry_id for packet in pipe.packets if packet.frames] == [2]


def test_what_readers_need_outlasts_their_dispatcher_for_a_while() -> None:
    rig = Rig(2)
    rig.followers.need(0, Position(LEDGER, 3))
    rig.followers.need(1, Position(LEDGER, 5))
    rig.followers.need(1, LATEST)
    for session in rig.sessions:
        rig.followers.forget(session)
    assert rig.followers.needed_behind() == [Position(LEDGER, 3)], "the other one's readers had left before"
    rig.loop.pass_time(RETURN_S - 1)
    rig.follow(rig.sessions[1])
    rig.followers.need(1, Position(LEDGER, 4))
    assert sorted(rig.followers.needed_behind()) == [Position(LEDGER, 3), Position(LEDGER, 4)]
    rig.loop.pass_time(1)
    assert rig.followers.needed_behind() == [Position(LEDGER, 4)]
