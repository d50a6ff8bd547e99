"""The writing side of a client's lane.

Packets go out whole, one thread writes at a time, and nobody waits for ever.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from pulsar_ray.errors import PulsarException, SessionLost, Timeout
from pulsar_ray.lane.handshake import LaneLimits
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.session.packet import Buffer, buffer_bytes, total_bytes

_MAX_BUFFERS_PER_WRITE = 1024
_HELD_BYTES = 256 * 1024
"""So much at most waits for packets that are to be written together."""
_FAREWELL_S = 0.1
"""Time for the reader to find the peer's reason after a failed write."""


class LaneWriter:
    """Writes to a blocking socket, for threads that may block (`write`) and for others (`queue`).

    Bytes that the latter could not write go out before anything later: by the next writer, or by `flush` when
    the socket is writable again, for which `want_write(True)` asks. `lose` is called when writing fails or
    makes no progress in time.
    """

    def __init__(
        self,
        sock: socket.socket,
        limits: LaneLimits,
        io: IoThread,
        want_write: Callable[[bool], None],
        lose: Callable[[PulsarException], None],
    ) -> None:
        self._sock = sock
        self._limits = limits
        self._io = io
        self._want_write = want_write
        self._lose = lose
        self._lock = threading.Lock()
        self._packets: deque[Sequence[Buffer]] = deque()
        self.held_bytes = 0
        """Of packets that `hold` left to a `flush_held`; unless 0, that is still to come."""
        self._flushes = 0
        self._is_watched = False
        self._is_broken = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes of queued packets that are not written yet."""
        return sum(map(total_bytes, list(self._packets)))

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Write everything queued, then these; blocks while the peer takes something each `limits.write_s`.

        Raises SessionLost or Timeout; after either, and after any other exception in the middle, the
        connection is lost.
        """
        if not self._lock.acquire(timeout=self._limits.write_s):
            raise Timeout(f"other threads have been writing for {self._limits.write_s} s")
        try:
            rest = buffers
            if self._packets:
                self._packets.append(buffers)
                rest = self._take()
            while rest:
                before, rest = rest, self._write_some(rest, 0)
                if rest is before:
                    raise Timeout(f"the peer took nothing for {self._limits.write_s} s")
                if self._packets and not rest:
                    rest = self._take()
        except (OSError, PulsarException) as error:
            raise self._fail(error) from error
        except BaseException:
            self._lose(SessionLost("interrupted in the middle of a packet"))
            raise
        finally:
            self._lock.release()
        if self._packets:
            self.flush()

    def hold(self, buffers: Sequence[Buffer]) -> None:
        """Queue these buffers as `queue` does, when more may follow at once.

        A `flush_held` is to come, by the same thread.
        """
        self.held_bytes += total_bytes(buffers)
        if self.held_bytes > _HELD_BYTES:
            self.held_bytes = 0
            self.queue(buffers)
        else:
            self._packets.append(buffers)

    def flush_held(self) -> None:
        """Write what was held, with one call as far as that goes."""
        if self.held_bytes:
            self.held_bytes = 0
            self.queue(())

    def queue(self, buffers: Sequence[Buffer]) -> None:
        """Write these after everything queued, now or when the socket takes them.

        It never blocks or raises.
        """
        if buffers:
            self._packets.append(buffers)
        self.flush()
        if self._packets and self.unsent_bytes > self._limits.unsent_bytes:
            self._lose(SessionLost(f"the peer leaves {self.unsent_bytes} bytes unread"))

    def flush(self) -> None:
        """Write what is queued as far as the socket takes it now."""
        # A thread that holds the lock looks again after releasing it, so no packet stays behind.
        while self._packets and self._lock.acquire(blocking=False):
            try:
                if not self._flush_locked():
                    return
            finally:
                self._lock.release()

    def flush_writable(self) -> None:
        """The socket, for which `want_write` asked, has room."""
        if self._lock.acquire(blocking=False):
            try:
                self._flush_locked()
            finally:
                self._lock.release()
            self.flush()

    def close_if_idle(self) -> bool:
        """Close the socket and return True, unless a writer is in it."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._packets.clear()
            self._sock.close()
        finally:
            self._lock.release()
        return True

    def _take(self) -> list[Buffer]:
        """Packets that can be written together."""
        packets = self._packets
        buffers = list(packets.popleft())
        while packets and len(buffers) + len(packets[0]) <= _MAX_BUFFERS_PER_WRITE:
            buffers += packets.popleft()
        return buffers

    def _write_some(self, buffers: Sequence[Buffer], flags: int) -> Sequence[Buffer]:
        """Write buffers and return the rest; these themselves if the socket took nothing.

        Without MSG_DONTWAIT the kernel waits for room: it goes on at the first freed bytes, where polling
        would have to wait until most of the socket's buffer is free.
        """
        if self._is_broken:
            raise SessionLost("the connection is broken")
        try:
            written = self._sock.sendmsg(buffers[:_MAX_BUFFERS_PER_WRITE], (), flags)
        except BlockingIOError:
            return buffers
        if written == total_bytes(buffers):
            return ()
        for index, buffer in enumerate(buffers):
            size = buffer_bytes(buffer)
            if written < size:
                return [memoryview(buffer).cast("B")[written:], *buffers[index + 1 :]]
            written -= size
        return ()

    def _flush_locked(self) -> bool:
        """Write queued packets; False when the socket takes no more.

        `want_write` is called either way, and only here, under the lock.
        """
        try:
            while self._packets:
                packet = self._take()
                rest = self._write_some(packet, socket.MSG_DONTWAIT)
                if rest is not packet:
                    self._flushes += 1
                if rest:
                    self._packets.appendleft(rest)
                    self._want_write(True)
                    self._watch_progress()
                    return False
        except (OSError, PulsarException) as error:
            self._packets.clear()
            self._fail(error)
        self._want_write(False)
        return True

    def _watch_progress(self) -> None:
        if self._is_watched:
            return
        self._is_watched = True
        flushes = self._flushes
        self._io.call_later(self._limits.write_s, lambda: self._check_progress(flushes))

    def _check_progress(self, flushes_before: int) -> None:
        self._is_watched = False
        if not self._packets:
            return
        if self._flushes == flushes_before:
            self._lose(Timeout(f"the peer took nothing for {self._limits.write_s} s"))
        else:
            self._watch_progress()

    def _fail(self, error: Exception) -> PulsarException:
        """Nothing more can be written.

        The reader gets a moment to find out why the peer closed.
        """
        self._is_broken = True
        if isinstance(error, PulsarException):
            self._lose(error)
            return error
        lost = SessionLost(f"writing failed: {error}")
        self._io.call_later(_FAREWELL_S, lambda: self._lose(lost))
        return lost
