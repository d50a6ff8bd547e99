"""Lets messages into a producer's queue while it has room and its partition is there."""

from __future__ import annotations

from pulsar_ray.client.producer.queue.block_sealer import BlockSealer
from pulsar_ray.client.producer.queue.block_writer import BlockWriter
from pulsar_ray.client.producer.queue.partition_access import PartitionAccess
from pulsar_ray.client.producer.queue.partition_turn import PartitionTurn
from pulsar_ray.client.producer.queue.send_room import SendRoom
from pulsar_ray.errors import ProducerQueueIsFull
from pulsar_ray.lane.io_thread import Timers
from pulsar_ray.lane.waiting import may_wait


class Admission:
    """Admits messages, or waits until they fit, or refuses them.

    Every call is made with the queue's state lock held, which a wait gives back meanwhile.
    """

    __slots__ = ("_access", "_room", "_sealer", "_timers", "_turn", "_waits_if_full", "_writer")

    def __init__(
        self,
        access: PartitionAccess,
        room: SendRoom,
        sealer: BlockSealer,
        turn: PartitionTurn,
        writer: BlockWriter,
        timers: Timers,
        *,
        waits_if_full: bool,
    ) -> None:
        self._access = access
        self._room = room
        self._sealer = sealer
        self._turn = turn
        self._writer = writer
        self._timers = timers
        self._waits_if_full = waits_if_full

    def admit(self, in_turn: bool) -> None:
        """Wait until a message fits; the room then knows how many more do.

        A message in turn does not wait once the turn is elsewhere, which the end of an open batch makes it.
        While the partition is not open each message looks. Raises WrongNode if it is known to be away, and
        what ended the queue.
        """
        access, turn = self._access, self._turn
        access.raise_if_ended()
        if not access.is_open:
            if in_turn and not access.takes_keyless:
                turn.pass_on()
                if turn.is_elsewhere():
                    return
            access.ensure_there()
        if self._is_full(1, 0):
            if in_turn:
                self._seal_for_room()
            if not (in_turn and turn.is_elsewhere()):
                self._wait(1, 0, in_turn)
            if in_turn and turn.is_elsewhere():
                return
        # One at least, for the message itself: a queue may be full of less than a message.
        self._room.sure = max(1, self.room_left) if access.is_open else 1

    def admit_block(self, messages: int, size: int) -> None:
        """Wait until a block of so many bytes fits.

        0 `messages` are limited by bytes only. Raises WrongNode if the partition is known to be
        away, and what ended the queue.
        """
        self._access.ensure()
        if self._is_full(messages, size):
            self._wait(messages, size)
        self._room.sure = 0

    @property
    def room_left(self) -> int:
        """How many messages fit without waiting."""
        return self._room.left(self._sealer.gathered)

    def _is_full(self, messages: int, size: int) -> bool:
        return self._room.is_full(self._sealer.gathered, messages, size)

    def _wait(self, messages: int, size: int, in_turn: bool = False) -> None:
        if not self._waits_if_full and messages:
            raise self._room.full_error(self._sealer.gathered)
        if self._timers.is_current or not may_wait():
            raise ProducerQueueIsFull("the queue is full, and a callback must not wait for it")

        def is_over() -> bool:
            self._access.raise_if_ended()
            if (in_turn and self._turn.is_elsewhere()) or not self._is_full(messages, size):
                return True
            self._seal_for_room()
            return False

        self._room.wait_until(is_over)

    def _seal_for_room(self) -> None:
        """Finish what is open, which would fill the queue until its delay is over."""
        builder = self._sealer.builder
        if builder is not None and builder.is_open:
            self._sealer.take_finished(seal=True)
            self._timers.call_soon(self._writer.write_if_any)
