"""The dispatchers that follow a non-persistent partition: they get every entry at once, or never."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsar_ray.format.block import BlockHeader
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.managed_ledger.log.memory_log import Blocks
from pulsar_ray.session.requests import Follow, Pushed, encode_request
from pulsar_ray.session.session_table import Session

MIB = 1024 * 1024
WINDOW_BYTES = 16 * MIB
"""Bytes that may be under way to one follower; the largest blocks are 5 MiB."""
MAX_BODY_BYTES = 2 * MIB


class _Follower:
    __slots__ = ("armed", "attachment", "dropped", "sent_bytes", "session", "subscription", "taken_bytes")

    def __init__(self, session: Session, sent_bytes: int) -> None:
        self.session = session
        self.attachment = session.attachment
        self.subscription = ""
        self.armed = False
        self.sent_bytes = sent_bytes
        self.taken_bytes = sent_bytes
        self.dropped = 0

    def has_room(self, size: int) -> bool:
        if not self.armed or self.session.carrier is None:
            return False
        return self.sent_bytes - self.taken_bytes + size <= WINDOW_BYTES


class PushFollowers:
    """Sends blocks on as they are, within each follower's window.

    Beyond its window entries are lost for that follower alone, and counted.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        # Where a new follower's count begins: a dispatcher sees it rise also when its session ended.
        self._published_bytes = 0
        self._followers: dict[int, _Follower] = {}

    def follow(self, session: Session, request: Follow) -> None:
        """Arm or disarm a follower, and learn how far it has got."""
        follower = self._followers.get(session.id)
        if follower is None:
            follower = self._followers[session.id] = _Follower(session, self._published_bytes)
        elif follower.attachment != session.attachment:
            # Bytes under way on the carrier that is gone have arrived by now, or never will.
            follower.taken_bytes = follower.sent_bytes
            follower.attachment = session.attachment
        follower.subscription = request.subscription
        follower.armed = request.armed
        if request.epoch == self._epoch:
            taken = min(request.taken_bytes, follower.sent_bytes)
            follower.taken_bytes = max(follower.taken_bytes, taken)

    def following(self, session: Session) -> dict[str, Any]:
        """Whether this follower gets entries, and how many messages it did not get so far."""
        follower = self._followers.get(session.id)
        if follower is None:
            return {"epoch": self._epoch, "armed": False, "dropped": 0}
        return {"epoch": self._epoch, "armed": follower.armed, "dropped": follower.dropped}

    def forget(self, session: Session) -> None:
        """The session ended."""
        self._followers.pop(session.id, None)

    def end_subscription(self, session: Session) -> None:
        """Forget a follower whose subscription is gone, with predecessors of it that have crashed."""
        name = self._followers[session.id].subscription if session.id in self._followers else ""
        self.forget(session)
        if name:
            self._followers = {i: f for i, f in self._followers.items() if f.subscription != name}

    def push(self, blocks: Blocks) -> set[int]:
        """Send blocks to every follower with room; the indexes of those that somebody connected lost."""
        lost: set[int] = set()
        self._published_bytes += sum(header.total_length for header, _ in blocks)
        for follower in self._followers.values():
            self._push_to(follower, blocks, lost)
        return lost

    def _push_to(self, follower: _Follower, blocks: Blocks, lost: set[int]) -> None:
        taken: list[tuple[int, int, int]] = []
        body: list[Buffer] = []
        size = 0
        for index, (header, buffers) in enumerate(blocks):
            length = header.total_length
            if not follower.has_room(size + length):
                follower.dropped += header.message_count
                if follower.armed:
                    lost.add(index)
                continue
            if size and size + length > MAX_BODY_BYTES:
                self._send(follower, taken, body, size)
                taken, body, size = [], [], 0
            taken.append((length, header.entries, header.message_count))
            body.extend(buffers)
            size += length
        if taken:
            self._send(follower, taken, body, size)

    def _send(
        self, follower: _Follower, taken: list[tuple[int, int, int]], body: list[Buffer], size: int
    ) -> None:
        follower.sent_bytes += size
        packet = Pushed(self._epoch, follower.sent_bytes, follower.dropped, taken)
        follower.session.send(encode_request(packet, body))

    @property
    def has_readers(self) -> bool:
        """Whether the dispatcher of the non-durable subscriptions follows."""
        return any(not follower.subscription for follower in self._followers.values())

    @property
    def subscriptions(self) -> list[str]:
        """The durable subscriptions whose dispatchers follow, in the order they came."""
        return list(dict.fromkeys(f.subscription for f in self._followers.values() if f.subscription))


def messages_of(blocks: Sequence[tuple[BlockHeader, Any]], indexes: set[int]) -> dict[int, int]:
    """Messages of the blocks with these indexes, by their producers' incarnations."""
    found: dict[int, int] = {}
    for index in indexes:
        header = blocks[index][0]
        found[header.incarnation] = found.get(header.incarnation, 0) + header.message_count
    return found
