"""Actors' reports reach their node's store, whoever dies or is slow."""

from __future__ import annotations

import asyncio
import os
import stat
import struct
from pathlib import Path

from pulsar_ray.broker.figures.actor_report import MAX_REPORT_BYTES, ActorReport, Figures
from pulsar_ray.broker.figures.node_figures import NodeFigures
from pulsar_ray.broker.figures.report_socket import FigureReporter, report_socket, serve_reports
from pulsar_ray.model import metric_catalogue as metrics
from tests.other_user import listening, needs_root

TOPIC = "persistent://public/default/orders"
KEY = (metrics.MESSAGES_IN, ("public/default", TOPIC))
DEADLINE_S = 20.0
PERIOD_S = 0.01


class ManualActor:
    """An actor whose figures a test sets."""

    def __init__(self, life: int) -> None:
        self.messages = 0
        self.fails = False
        self.failed = asyncio.Event()
        self._life = life

    async def report(self) -> ActorReport:
        if self.fails:
            self.failed.set()
            raise RuntimeError("it is closing")
        return partition_report(self._life, self.messages)


def partition_report(life: int, messages: int) -> ActorReport:
    figures = Figures({metrics.MESSAGES_IN.name: float(messages)})
    return ActorReport(kind="partition", life=life, topic=TOPIC, number=1, figures=figures)


def counted(figures: NodeFigures) -> float:
    return figures.collect(0).counters.get(KEY, 0)


async def until_gone(figures: NodeFigures) -> None:
    """Wait until no actor is connected."""

    async def wait() -> None:
        while figures._live:
            await asyncio.sleep(PERIOD_S)

    await asyncio.wait_for(wait(), DEADLINE_S)


async def until_counted(figures: NodeFigures, messages: int) -> None:
    async def wait() -> None:
        while counted(figures) != messages:
            await asyncio.sleep(PERIOD_S)

    await asyncio.wait_for(wait(), DEADLINE_S)


def test_figures_arrive_and_go_on_with_another_store(tmp_path: Path) -> None:
    asyncio.run(_figures_go_on(tmp_path))


async def _figures_go_on(tmp_path: Path) -> None:
    socket = report_socket(tmp_path, "0123456789abcdef0123")
    actor = ManualActor(life=5)
    reporter = FigureReporter(asyncio.get_running_loop(), socket, PERIOD_S, actor.report)
    first = NodeFigures("s", 10, 10)
    server = await serve_reports(first, socket)
    assert stat.S_IMODE(os.stat(socket).st_mode) == 0o600
    actor.messages = 7
    await until_counted(first, 7)
    actor.fails = True
    failed = actor.failed
    await asyncio.wait_for(failed.wait(), DEADLINE_S)
    actor.fails = False
    actor.messages = 9
    await until_counted(first, 9)
    # Another process takes the socket over; the actor's connection ends with the former one.
    second = NodeFigures("s", 10, 10)
    second_server = await serve_reports(second, socket)
    server.close()
    assert reporter._transport is not None
    reporter._transport.close()
    await until_counted(second, 9)
    actor.fails = True
    reporter._transport.close()
    await until_gone(first)
    await until_gone(second)
    second_server.close()


def test_anything_but_a_report_ends_its_own_connection_only(tmp_path: Path) -> None:
    asyncio.run(_only_reports_are_taken(tmp_path))


async def _only_reports_are_taken(tmp_path: Path) -> None:
    socket = report_socket(tmp_path, "node")
    figures = NodeFigures("s", 10, 10)
    server = await serve_reports(figures, socket)
    unknown = ActorReport(kind="x", life=6, figures=Figures({"made_up": 1})).encode()
    for packed in (b"nonsense", unknown):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(struct.pack("<I", len(packed)) + packed)
        assert await reader.read() == b""
        writer.close()
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(struct.pack("<I", MAX_REPORT_BYTES + 1))
    assert await reader.read() == b""
    writer.close()
    packed = partition_report(8, 3).encode()
    _, writer = await asyncio.open_unix_connection(str(socket))
    message = struct.pack("<I", len(packed)) + packed
    writer.write(message[:7])
    await writer.drain()
    writer.write(message[7:])
    await until_counted(figures, 3)
    writer.close()
    await until_gone(figures)
    server.close()


@needs_root
def test_an_actor_reports_nothing_to_another_user(tmp_path: Path) -> None:
    asyncio.run(_nothing_is_reported(tmp_path / "figures-node"))


async def _nothing_is_reported(socket: Path) -> None:
    reporter = FigureReporter(asyncio.get_running_loop(), socket, 3600, ManualActor(life=5).report)
    with listening(socket) as listener:
        await asyncio.wait_for(reporter._send(), DEADLINE_S)
        assert await asyncio.to_thread(listener.received_bytes) == 0


def test_sockets_of_nodes_that_are_gone_are_removed(tmp_path: Path) -> None:
    asyncio.run(_former_nodes_go(tmp_path))


async def _former_nodes_go(directory: Path) -> None:
    servers = {}
    for node in ("gone", "new", "here"):
        servers[node] = await serve_reports(NodeFigures("s", 10, 10), report_socket(directory, node))
    for node in ("gone", "new"):
        path = report_socket(directory, node)
        os.rename(path, directory / "kept")  # a loop that closes its socket removes it
        servers[node].close()
        os.rename(directory / "kept", path)
    for node in ("gone", "here"):
        os.utime(report_socket(directory, node), (1_000_000, 1_000_000))
    last = await serve_reports(NodeFigures("s", 10, 10), report_socket(directory, "next"))
    assert sorted(os.listdir(directory)) == ["figures-here", "figures-new", "figures-next"]
    for server in (servers["here"], last):
        server.close()
