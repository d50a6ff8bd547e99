"""The store's end of the socket by which processes tell what they have synced.

A cursor must not be shipped before the log that it stands on. A partition tells of its log before anybody may
read what is new in it, so a partition's packets are taken first, whenever a cursor's packet has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import deque
from pathlib import Path
from typing import Any

from pulsar_ray.closed_places import bound_socket
from pulsar_ray.errors import ProtocolError, PulsarException
from pulsar_ray.journal.life_runner import LifeRunner
from pulsar_ray.journal.offloaded.resting_offers import RestingOffers
from pulsar_ray.journal.offloaded.room_plan import Offer, RoomPlan
from pulsar_ray.journal.store_files import StoreFiles
from pulsar_ray.journal.telling import SOCKET, Packets, encode

logger = logging.getLogger(__name__)

BACKLOG = 1024
_READ_BYTES = 1 << 16
_PAUSE_S = 0.05


class _Teller:
    """One connection: the writer of one partition's log, or of one cursor."""

    __slots__ = ("answered", "connection", "is_log", "packets", "partition", "prefix", "turns", "unsent")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.packets = Packets()
        self.partition = self.prefix = ""
        self.is_log = False
        self.turns: deque[tuple[int, int]] = deque()
        """Turns of the life, with the turns of the teller that are shipped then."""
        self.answered = -1
        self.unsent = b""


class JournalDoor:
    """Takes tellers for one life of a store, on the loop of its runner."""

    def __init__(
        self, data_dir: Path, runner: LifeRunner, files: StoreFiles, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._data_dir = data_dir
        self._runner = runner
        self._life = runner.life
        self._files = files
        self._loop = loop
        self._tellers: dict[int, _Teller] = {}
        self._logs: dict[str, _Teller] = {}
        self._waiting: dict[_Teller, None] = {}
        """These have still to hear how far they are shipped."""
        self._listening: socket.socket | None = None
        self._room = RoomPlan()
        self._resting = RestingOffers(data_dir, runner, self._room, lambda: self._logs, loop)

    def open(self) -> None:
        """Listen from now on, in place of any former process. Raises UntrustedPath, OSError."""
        listening = bound_socket(self._data_dir, SOCKET)
        listening.listen(BACKLOG)
        self._listening = listening
        self._loop.add_reader(listening, self._accept)
        self._runner.begin(self._resting.keep_room())

    def close(self) -> None:
        """End all connections; the tellers come again to the next life."""
        listening, self._listening = self._listening, None
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()
        for teller in list(self._tellers.values()):
            self._forget(teller)

    def answer(self) -> None:
        """Tell each teller how far it is shipped, if that is further than before.

        A partition that is shipped no further hears nothing of what others have shipped.
        """
        shipping, serving = self._life.shipping, self._life.serving
        shipped = shipping.shipped
        for teller in [each for each in self._waiting if each.partition in serving]:
            if teller.partition in shipping.unreadable:
                teller.turns.clear()
            done = teller.answered
            while teller.turns and teller.turns[0][0] <= shipped:
                done = teller.turns.popleft()[1]
            if not teller.turns:
                self._waiting.pop(teller, None)
            if done > teller.answered:
                teller.answered = done
                self._send(teller, ["shipped", done])

    def _accept(self) -> None:
        if self._listening is None:
            return
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        connection.setblocking(False)
        teller = self._tellers[connection.fileno()] = _Teller(connection)
        self._loop.add_reader(connection, self._read, teller)

    def _read(self, teller: _Teller) -> None:
        if not self._life.shipping.has_room:
            # Packets that are not read are held back at the tellers, and so are their receipts.
            self._loop.remove_reader(teller.connection)
            self._loop.call_later(_PAUSE_S, self._go_on, teller)
            return
        self._drain(teller)
        self._runner.nudge()

    def _go_on(self, teller: _Teller) -> None:
        if self._tellers.get(teller.connection.fileno()) is teller:
            self._loop.add_reader(teller.connection, self._read, teller)

    def _drain(self, teller: _Teller) -> None:
        """Read what a connection has by now."""
        while True:
            try:
                data = teller.connection.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._forget(teller)
                return
            try:
                for packet in teller.packets.take(data):
                    self._take(teller, packet)
            except (ProtocolError, ValueError, TypeError, IndexError) as error:
                logger.error("a process tells the journal what nobody understands: %s", error)
                self._forget(teller)
                return
            except (OSError, PulsarException) as error:
                # It comes again with all that it knows, until the disk has room for its note.
                logger.warning("partition %s is not in the journal yet: %s", teller.partition, error)
                self._forget(teller)
                return

    def _take(self, teller: _Teller, packet: list[Any]) -> None:
        match packet:
            case ["hello", str(partition), str(prefix), int(turn), dict(ends), list(gone)]:
                teller.partition, teller.prefix, teller.is_log = partition, prefix, not prefix
                if teller.is_log:
                    if (before := self._logs.get(partition)) not in (None, teller):
                        self._drain(before)  # what a former owner told comes before
                    self._logs[partition] = teller
                    self._enter(partition, ends)
                known = self._life.files_of(partition)
                folder = prefix.rstrip("/")
                of_teller = [name for name in known if name.rpartition("/")[0] == folder]
                # A file that is here may have begun behind this packet; its remover tells of others.
                gone += [n for n in of_teller if n not in ends and not self._files.has(partition, n)]
                self._queue(teller, turn, False, ends, gone)
            case ["tell", int(turn), bool(is_awaited), dict(ends), list(gone)]:
                self._queue(teller, turn, is_awaited, ends, gone)
            case ["forget", str(partition)]:
                if self._files.has_offloaded(partition):
                    raise ProtocolError(
                        f"partition {partition} may not leave the journal: some of it is only there"
                    )
                if self._logs.get(partition) in (None, teller):  # else another owner ships it by now
                    self._life.forget(partition)
            case ["offload" | "fetch back" as what, int(number), list(names)]:
                self._runner.begin(self._change_places(teller, what, number, names))
            case ["room", int(number), int(used), int(total), int(percent), list(offers)]:
                offered = [Offer(*offer) for offer in offers]
                now = self._loop.time()
                granted = self._room.asked(teller.partition, (used, total), percent, offered, now)
                self._send(teller, ["moved", number, granted, ""])
            case _:
                raise ProtocolError(f"{packet[0]!r}")

    def _queue(
        self, teller: _Teller, turn: int, is_awaited: bool, ends: dict[str, int], gone: list[str]
    ) -> None:
        partition = teller.partition
        if not partition:
            raise ProtocolError("no hello came before")
        if not teller.is_log:
            self._take_log_first(partition)
        now = self._loop.time()
        life_turn = self._life.tell(now, partition, ends, is_awaited)
        if gone:
            self._life.gone(now, partition, gone)
            life_turn = max(life_turn, self._life.shipping.turn)
        teller.turns.append((life_turn, turn))
        self._waiting[teller] = None

    async def _change_places(self, teller: _Teller, what: str, number: int, names: list[str]) -> None:
        """Leave segments to the object store, or bring them back; then say which."""
        life, done, problem = self._life, list[str](), ""
        task = life.offloading.offload if what == "offload" else life.offloading.fetch_back
        try:
            done = await self._runner.run(task(teller.partition, names))
        except (PulsarException, OSError) as error:
            problem = error.text if isinstance(error, PulsarException) else str(error)
        if teller.connection.fileno() >= 0:
            self._send(teller, ["moved", number, done, problem])

    def _take_log_first(self, partition: str) -> None:
        log = self._logs.get(partition)
        if log is not None:
            self._drain(log)
            return
        # Nobody owns the log just now: what lies there is final.
        with contextlib.suppress(PulsarException, OSError):
            listed = self._files.lengths(partition) if partition in self._files.partitions() else {}
            ends = {name: end for name, end in listed.items() if "/" not in name}
            self._life.tell(self._loop.time(), partition, ends, False)

    def _enter(self, partition: str, ends: dict[str, int]) -> None:
        if not self._life.knows(partition):
            self._files.enter(partition, ends)
            self._runner.begin(self._runner.run(self._life.begin(partition)))

    def _forget(self, teller: _Teller) -> None:
        if teller.connection.fileno() < 0:
            return
        self._tellers.pop(teller.connection.fileno(), None)
        self._waiting.pop(teller, None)
        if self._logs.get(teller.partition) is teller:
            del self._logs[teller.partition]
        self._loop.remove_reader(teller.connection)
        self._loop.remove_writer(teller.connection)
        teller.connection.close()

    def _send(self, teller: _Teller, packet: list[Any]) -> None:
        teller.unsent += encode(packet)
        self._write(teller)

    def _write(self, teller: _Teller) -> None:
        if teller.connection.fileno() < 0:
            return
        try:
            sent = teller.connection.send(teller.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._forget(teller)
            return
        teller.unsent = teller.unsent[sent:]
        if teller.unsent:
            self._loop.add_writer(teller.connection, self._write, teller)
        else:
            self._loop.remove_writer(teller.connection)
