"""Tells the node's store what is synced, and lets receipts wait for the journal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.clock import growing_pauses_s
from pulsar_ray.closed_places import short_socket_path
from pulsar_ray.config import OFF, Settings
from pulsar_ray.errors import ProtocolError, PulsarException, RemoteStoreUnavailable
from pulsar_ray.journal.offloaded.room_plan import Offer
from pulsar_ray.journal.receipts import Receipts
from pulsar_ray.journal.store_files import read_term
from pulsar_ray.journal.telling import SOCKET, Packets, encode
from pulsar_ray.lane.address import check_listener

logger = logging.getLogger(__name__)

RETRY_S = 0.5
LONGEST_RETRY_S = 30.0
ASYNC, SYNC = "async", "sync"


class ShippingLink:
    """One writer of one partition's files, and its receipts; it is told by a `ShippedDisk`.

    Nothing here is lost with a connection: the next one begins with everything that the writer knows.
    """

    def __init__(
        self,
        data_dir: Path,
        partition: int,
        prefix: str,
        loop: asyncio.AbstractEventLoop,
        lag_bound_seconds: float,
    ) -> None:
        self._data_dir = data_dir
        self._partition = str(partition)
        self._directory = data_dir / "p" / self._partition
        self._prefix = prefix
        self._loop = loop
        self._durability = OFF
        self._is_decided = False
        """Whether policies have said how this is shipped; files are opened before."""
        self._receipts = Receipts(lag_bound_seconds)
        self._ends: dict[str, int] = {}
        self._gone: dict[str, int] = {}
        self._fresh: deque[tuple[str, int]] = deque()
        self._turn = self._shipped = 0
        self._told_turn = 0
        self._socket: socket.socket | None = None
        self._unsent = b""
        self._timer: asyncio.TimerHandle | None = None
        self._forget_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._moving: dict[int, asyncio.Future[list[str]]] = {}
        self._last_move = 0

    # ---- as a `Told`, on the thread that writes
    def synced(self, name: str, end: int) -> None:
        """Note that a file is durable here up to this end."""
        self._ends[name] = end
        if self._durability != OFF:
            # In this order: who reads the turn first and then takes these misses none.
            self._fresh.append((name, end))
            self._turn += 1

    def gone(self, name: str) -> bool:
        """Note that nothing lists a file any more; return whether the store removes it.

        While it is opened, a file of a partition that was shipped before may wait for that yet.
        """
        self._ends.pop(name, None)
        if self._durability == OFF and (self._is_decided or not self._was_shipped()):
            return False
        self._gone[name] = self._turn + 1
        self._turn += 1
        return True

    def _was_shipped(self) -> bool:
        term = read_term(self._directory)
        return term is not None and not term.is_left_out

    # ---- on the owner loop
    def list_files(self, ends: dict[str, int]) -> None:
        """Take the files that were there before this process wrote any."""
        self._ends = {**ends, **self._ends}

    def set_durability(self, durability: str, lag_bound_seconds: float) -> None:
        """Begin or end shipping, or change the wait of receipts from now on."""
        self._receipts.lag_bound_seconds = lag_bound_seconds
        before, self._durability = self._durability, durability
        if not self._is_decided:
            self._is_decided = True
            if durability == OFF:
                self._remove_gone()
                self._forget()  # a former owner's process may have ended before the store did
        if OFF not in (before, durability) or before == durability:
            if (before, durability) == (SYNC, ASYNC):
                self._receipts.relax()
                self._release()
            return
        if durability == OFF:
            self._shipped = self._turn
            self._release()
            self._forget()
        else:
            self._turn += 1
            self._stop_forgetting()
            # Behind what was asked for on the same connection: it must not be taken after this.
            self._hello() if self._socket is not None else self._connect()

    def _forget(self, pauses: Iterator[float] | None = None) -> None:
        """Have the store take the partition out of its journal, again until it did.

        The directory says so then. Cursors are taken out together with their log.
        """
        if self._is_closed or self._durability != OFF or self._prefix or not self._was_shipped():
            return
        if self._socket is not None or self._open():
            self._send(["forget", self._partition])
        pauses = pauses or growing_pauses_s(RETRY_S, LONGEST_RETRY_S)
        self._forget_timer = self._loop.call_later(next(pauses), self._forget, pauses)

    def _stop_forgetting(self) -> None:
        if self._forget_timer is not None:
            self._forget_timer.cancel()
            self._forget_timer = None

    def _remove_gone(self) -> None:
        """Remove what no store is going to be told of."""
        while self._gone:
            with contextlib.suppress(OSError):
                (self._directory / self._gone.popitem()[0]).unlink()

    def when_durable(self, receipt: Callable[[], None]) -> None:
        """Call back, perhaps at once, when all that is synced by now is durable enough."""
        if self._durability == OFF:
            receipt()
            return
        self._receipts.ask(self._turn, receipt, self._durability)
        self.flush()
        self._release()

    def flush(self) -> None:
        """Tell the store what came since, in one packet."""
        if self._socket is None or self._durability == OFF or self._turn == self._told_turn:
            return
        before, self._told_turn = self._told_turn, self._turn
        ends = dict(self._fresh.popleft() for _ in range(len(self._fresh)))
        gone = [name for name, turn in list(self._gone.items()) if turn > before]
        self._send(["tell", self._told_turn, self._receipts.waits_for_sync, ends, gone])

    def tick(self) -> None:
        """Once a second: tell what nobody waits for, and say what receipts wait for."""
        self.flush()
        self._release()

    async def move(self, what: str, names: Sequence[str]) -> list[str]:
        """Have the store "offload" closed segments, or "fetch back"; return those that it did.

        Raises RemoteStoreUnavailable, with the reason if the store tells one.
        """
        return await self._asked(what, list(names))

    async def room(self, disk: tuple[int, int], percent: int, offers: Sequence[Offer]) -> list[str]:
        """Ask the store which segments have to leave a disk that is too full.

        See `RoomPlan.asked`; raises as `move`.
        """
        return await self._asked("room", *disk, percent, [list(offer) for offer in offers])

    async def _asked(self, what: str, *arguments: object) -> list[str]:
        if self._socket is None:
            raise RemoteStoreUnavailable(
                "the node's store does not ship: `pulsar-ray remote status` says why"
            )
        self._last_move += 1
        number = self._last_move
        moving: asyncio.Future[list[str]] = self._loop.create_future()
        self._moving[number] = moving
        try:
            self._send([what, number, *arguments])
            return await moving
        finally:
            self._moving.pop(number, None)

    @property
    def is_off(self) -> bool:
        """Whether nothing is shipped."""
        return self._durability == OFF

    @property
    def waiting(self) -> str:
        """Why receipts wait; "" if they do not."""
        if not self._receipts.is_waiting(self._loop.time()):
            return ""
        if self._socket is None:
            return "the node's store does not take what is to be shipped to the object store"
        return "receipts wait for the object store: `pulsar-ray remote status` says why"

    def close(self) -> None:
        """Tell the rest, and end; receipts that wait are not given."""
        self.flush()
        self._is_closed = True
        self._stop_forgetting()
        self._lose()

    # ---- the connection
    def _connect(self) -> None:
        self._timer = None
        if self._is_closed or self._durability == OFF or self._socket is not None:
            return
        if self._open():
            self._hello()
        else:
            self._timer = self._loop.call_later(RETRY_S, self._connect)

    def _open(self) -> bool:
        connection = socket.socket(socket.AF_UNIX)
        try:
            with short_socket_path(self._data_dir, SOCKET) as (path, _):
                connection.connect(path)
                check_listener(connection, path)
        except (OSError, PulsarException):
            connection.close()
            return False
        connection.setblocking(False)
        self._socket, self._unsent, self._packets = connection, b"", Packets()
        self._loop.add_reader(connection, self._read)
        return True

    def _hello(self) -> None:
        # Read before the ends: what is synced meanwhile is told again.
        turn = self._told_turn = self._turn
        self._send(["hello", self._partition, self._prefix, turn, dict(self._ends), list(self._gone)])

    def _send(self, packet: list[Any]) -> None:
        if self._socket is None:
            return
        self._unsent += encode(packet)
        self._write()

    def _write(self) -> None:
        assert self._socket is not None
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._reconnect()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._reconnect()
            return
        try:
            for packet in self._packets.take(data):
                if packet[0] == "shipped":
                    self._took(packet[1])
                elif packet[0] == "moved":
                    self._moved(*packet[1:])
        except ProtocolError as error:
            logger.error("the journal of this node answers what nobody understands: %s", error)
            self._reconnect()
            return
        self._release()

    def _moved(self, number: int, names: list[str], problem: str) -> None:
        moving = self._moving.get(number)
        if moving is None or moving.done():
            return
        if problem:
            moving.set_exception(RemoteStoreUnavailable(problem))
        else:
            moving.set_result(names)

    def _took(self, turn: int) -> None:
        self._shipped = max(self._shipped, turn)
        for name in [name for name, at in self._gone.items() if at <= turn]:
            del self._gone[name]

    def _reconnect(self) -> None:
        self._lose()
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(RETRY_S, self._connect)

    def _lose(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            self._loop.remove_reader(connection)
            self._loop.remove_writer(connection)
            with contextlib.suppress(OSError):
                connection.close()
        for moving in self._moving.values():
            if not moving.done():
                moving.set_exception(
                    RemoteStoreUnavailable("the node's store has ended meanwhile: ask again")
                )

    def _release(self) -> None:
        # Bytes that did not get out of this process yet may be behind what is told of it: see `journal_door`.
        if self._unsent:
            return
        for receipt in self._receipts.release(self._loop.time(), self._shipped):
            receipt()


def shipping_link(
    settings: Settings, partition: int, prefix: str, loop: asyncio.AbstractEventLoop
) -> ShippingLink | None:
    """Return a link for the files of a partition below a prefix.

    None if there is no object store.
    """
    if settings.remote_url == OFF:
        return None
    lag_s = settings.remote_lag_seconds
    return ShippingLink(Path(settings.data_dir).expanduser(), partition, prefix, loop, lag_s)
