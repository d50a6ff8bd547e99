"""Carries large packets of clients on the node in shared memory (ADR 0020).

The client lends the actor a memfd: a page of marks, and a few slots. It copies a whole packet into a free
slot, or writes its body there in the first place, and the socket carries a small packet that names the place.
The actor copies the packet out before it looks at it, so that nothing that was checked can change afterwards,
and then marks the slot as taken. Neither end waits for the other or sends a notice: when no slot is free, or
the memory was never taken, packets go through the socket.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import msgpack

from pulsar_ray.errors import ProtocolError
from pulsar_ray.format.block_memory import BlockMemory
from pulsar_ray.kernel_calls import (
    F_ADD_SEALS,
    F_GET_SEALS,
    F_SEAL_GROW,
    F_SEAL_SHRINK,
    MFD_ALLOW_SEALING,
    MFD_CLOEXEC,
    memfd_create,
)
from pulsar_ray.numpy_on_demand import np
from pulsar_ray.session.packet import (
    HEADER,
    HEADER_BYTES,
    Buffer,
    Packet,
    buffer_bytes,
    decode_packet,
    encode_packet,
    packet_head,
    total_bytes,
)

MEMORY = 4
"""The carrier's own packet: (descriptor, nonce), memory that is lent."""
IN_MEMORY = 5
"""The carrier's own packet: one that stands in memory.

Its fields are slot, number, length and start within the slot.
"""

MIN_SHARED_BYTES = 208 * 1024
"""Packets that the socket takes at once cost no more there."""
SLOTS = 8
SLOTS_FOR_COPIES = 4
"""Slots that are never given away as rooms.

A room stays in use until its packets are confirmed.
"""
SLOT_BYTES = 1088 * 1024
"""A block of 1 MiB and what is around it."""
FRONT_BYTES = 4096
"""Before a room, for what of its packet comes in front."""
_PAGE = 4096
_MEMORY_BYTES = _PAGE + SLOTS * SLOT_BYTES
_NONCE_AT = 2048
_NONCE_BYTES = 16
_TAKEN = 0
_FIRST_SLOT = 1
"""The marks are 64-bit numbers, one for the memory, one for each slot.

The first is 1 once the memory was taken, the others are the last packets taken out.
"""


class LentMemory:
    """The client's end, for any thread. Raises OSError where there is no such memory."""

    def __init__(self) -> None:
        self._fd = memfd_create("pulsar-ray-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, _MEMORY_BYTES)
            seal(self._fd)
            self._map = mmap.mmap(self._fd, _MEMORY_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        self._view = memoryview(self._map)
        self._marks = self._view[:_NONCE_AT].cast("Q")
        self._taken_out = self._marks[_FIRST_SLOT : _FIRST_SLOT + SLOTS]
        self._pack = msgpack.Packer().pack
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._view[_NONCE_AT : _NONCE_AT + _NONCE_BYTES] = self._nonce
        self._lock = threading.Lock()
        self._numbers = [0] * SLOTS
        self._rooms: list[weakref.ref[Any] | None] = [None] * SLOTS
        self._address = np.frombuffer(self._map, np.uint8).__array_interface__["data"][0]

    def offer(self) -> list[Buffer]:
        """The packet that lends it."""
        return encode_packet(MEMORY, (self._fd, self._nonce))

    def put(self, packet: Sequence[Buffer], size: int) -> list[Buffer] | None:
        """Put a packet of `size` bytes into the memory; returns the packet to send instead.

        None if it has to go as it is.
        """
        if size > SLOT_BYTES or not self._marks[_TAKEN]:
            return None
        slot, start, written = self._room_in(packet, size)
        with self._lock:
            if slot is None:
                slot = next(iter(self._free_slots()), None)
            elif self._taken_out[slot] != self._numbers[slot]:
                return None
            if slot is None:
                return None
            self._numbers[slot] += 1
            fields = self._pack((slot, self._numbers[slot], size, start))
        at = _PAGE + slot * SLOT_BYTES + start
        for index, buffer in enumerate(packet):
            view = memoryview(buffer)
            end = at + view.nbytes
            if index != written:
                self._view[at:end] = view.cast("B")
            at = end
        return [packet_head(IN_MEMORY, fields, 0)]

    def room(self, length: int) -> memoryview | None:
        """Memory for so much of a packet, whose end `put` then need not copy.

        None if there is none to spare.

        It belongs to all that refer to it, also when this is closed: a packet may have to be sent again. If
        it is not sent as a packet's end, its last bytes are overwritten.
        """
        if length > SLOT_BYTES - 2 * FRONT_BYTES or not self._marks[_TAKEN]:
            return None
        with self._lock:
            free = self._free_slots()
            if len(free) <= SLOTS_FOR_COPIES:
                return None
            at = _PAGE + free[0] * SLOT_BYTES + FRONT_BYTES
            room = np.frombuffer(self._map, np.uint8, length, at)
            self._rooms[free[0]] = weakref.ref(room)
        return room.data

    def _free_slots(self) -> list[int]:
        """The slots that are free; called with the lock held."""
        slots = zip(self._taken_out.tolist(), self._numbers, self._rooms, strict=True)
        return [
            slot
            for slot, (taken_out, number, room) in enumerate(slots)
            if taken_out == number and (room is None or room() is None)
        ]

    def _room_in(self, packet: Sequence[Buffer], size: int) -> tuple[int | None, int, int]:
        """Find the slot of a buffer that is of a room.

        With the packet's start there, and which of the buffers it is.
        """
        front = 0
        for place, buffer in enumerate(packet):
            length = memoryview(buffer).nbytes
            if type(buffer) is memoryview and length >= MIN_SHARED_BYTES:
                for slot, room in enumerate(self._rooms):
                    if room is not None and room() is buffer.obj:
                        at = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] - self._address
                        start = at - _PAGE - slot * SLOT_BYTES - front
                        if start >= 0 and start + size <= SLOT_BYTES:
                            return slot, start, place
            front += length
        return None, 0, -1

    def close(self) -> None:
        """Lend it no more. The memory itself goes when nothing refers to it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class MemoryLender:
    """Which of a client's packets to one actor go through memory.

    It is lent with the first large one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: LentMemory | None = None
        self._is_over = False

    def shortened(self, packet: Sequence[Buffer]) -> Sequence[Buffer]:
        """The buffers to write for this packet: itself, or a note where it stands."""
        size = total_bytes(packet)
        if size < MIN_SHARED_BYTES or self._is_over or not _is_one(packet, size):
            return packet
        memory = self._memory
        if memory is None:
            return [*self._lend(), *packet]
        return memory.put(packet, size) or packet

    def room(self, length: int) -> memoryview | None:
        """Memory for so much of a packet, if it will go through memory."""
        memory = self._memory
        return None if memory is None or self._is_over or length < MIN_SHARED_BYTES else memory.room(length)

    def _lend(self) -> list[Buffer]:
        with self._lock:
            if self._memory is not None or self._is_over:
                return []
            try:
                self._memory = LentMemory()
            except OSError:  # a kernel without it, or a sandbox that forbids it
                self._is_over = True
                return []
            return self._memory.offer()

    def close(self) -> None:
        """The lane is gone."""
        with self._lock:
            self._is_over = True
            if self._memory is not None:
                self._memory.close()

    def abandon(self) -> None:
        """Let go of the memory in a forked child, where another thread's lock stays locked."""
        self._lock = threading.Lock()
        self.close()


def _is_one(buffers: Sequence[Buffer], size: int) -> bool:
    """Whether these buffers are one packet, not several."""
    first = buffers[0]
    if buffer_bytes(first) < HEADER_BYTES:
        return False
    _, _, _, fields_length, body_length = HEADER.unpack_from(first)
    return bool(HEADER_BYTES + fields_length + body_length == size)


class BorrowedMemory:
    """The actor's end, for one lane. Packets come out in buffers of `memory`."""

    def __init__(self, peer_pid: int, uid: int, memory: BlockMemory) -> None:
        self._peer_pid = peer_pid
        self._uid = uid
        self._memory = memory
        self._view: memoryview | None = None
        self._marks: memoryview | None = None

    def taken_out(self, packets: list[Packet]) -> list[Packet]:
        """The packets, those in the memory instead of those that name them.

        Only types up to `IN_MEMORY` are about it.

        Raises ProtocolError for a place that cannot be one, or what is no packet there.
        """
        whole = []
        for packet in packets:
            if packet.type == IN_MEMORY:
                whole.append(self._take(packet.fields))
            elif packet.type == MEMORY:
                self._borrow(packet.fields)
            else:
                whole.append(packet)
        return whole

    def _borrow(self, fields: tuple[object, ...]) -> None:
        """Map the memory that the peer lends, if it can be reached from here.

        Else the peer is sent nothing.
        """
        if self._view is not None or len(fields) != 2 or type(fields[0]) is not int:
            raise ProtocolError(f"memory cannot be lent with {len(fields)} fields or twice")
        try:
            mapped = map_of(self._peer_pid, fields[0], self._uid, _MEMORY_BYTES)
        except OSError:  # another mount or process namespace, or no right to look
            return
        view = memoryview(mapped)
        if view[_NONCE_AT : _NONCE_AT + _NONCE_BYTES] != fields[1]:
            return
        self._view = view
        self._marks = view[:_NONCE_AT].cast("Q")
        self._marks[_TAKEN] = 1

    def _take(self, fields: tuple[object, ...]) -> Packet:
        if self._view is None or self._marks is None:
            raise ProtocolError("a packet in memory that was not lent")
        try:
            slot, number, length, start = fields
        except ValueError:
            raise ProtocolError(f"a packet in memory with {len(fields)} fields") from None
        if (
            type(slot) is not int
            or type(number) is not int
            or type(length) is not int
            or type(start) is not int
        ):
            raise ProtocolError("a packet in memory with fields of wrong types")
        if (
            not 0 <= slot < SLOTS
            or not 0 <= start < SLOT_BYTES
            or not 0 < length <= SLOT_BYTES - start
            or not 0 <= number < 1 << 64
        ):
            raise ProtocolError(f"a packet of {length} bytes at {start} in slot {slot} of memory")
        at = _PAGE + slot * SLOT_BYTES + start
        own = self._memory.take(length, at)
        own[:] = self._view[at : at + length]
        self._marks[_FIRST_SLOT + slot] = number
        return decode_packet(own)


def seal(descriptor: int) -> None:
    """Keep the size of memory.

    A file that cannot shrink cannot end the process that looks at it.
    """
    fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)


def map_of(pid: int, descriptor: int, uid: int, size: int) -> mmap.mmap:
    """The memory behind a descriptor of another process.

    Raises OSError if it is not there or not as lent.
    """
    path = f"/proc/{pid}/fd/{descriptor}"
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != uid or status.st_size != size:
        raise OSError(f"{path} is not memory that was lent")
    fd = os.open(path, os.O_RDWR)
    try:
        if not fcntl.fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK:
            raise OSError(f"{path} may be cut")
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
