"""Measure publishing and consuming over HTTP beside aiohttp's own empty handler."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import aiohttp
import ray
from aiohttp import web

import pulsar_ray
from benchmarks.measuring.environment import Environment
from benchmarks.measuring.measure import p50, rate
from benchmarks.measuring.results import Row
from pulsar_ray.asyncio import Client, Consumer, Producer
from pulsar_ray.config import Settings
from pulsar_ray.gateway.gateway_actor import start_gateway

MESSAGE = "x" * 100
TOPICS = 10_000
ROWS = 100
CREATED_AT_ONCE = 8
UNDER_WAY = 32
FRAMES_UNDER_WAY = 900
ROUNDS = 9


class BareServer:
    """Answers each request and each frame with what it got, as little as aiohttp can do."""

    async def listen(self) -> str:
        application = web.Application(client_max_size=6 << 20)
        application.router.add_post("/echo", self._echo)
        application.router.add_get("/frames", self._frames)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _echo(self, request: web.Request) -> web.Response:
        return web.json_response(await request.json())

    async def _frames(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            await socket.send_json(json.loads(frame.data))
        return socket


class _Caller:
    """Calls both servers over connections that stay open."""

    def __init__(self, session: aiohttp.ClientSession, bare: str, ours: str, topic: str) -> None:
        self.session = session
        self._bare, self._ours = bare, ours
        self._path = topic.replace("://", "/")

    async def echo(self, count: int) -> None:
        await self._post(f"{self._bare}/echo", count)

    async def publish(self, count: int) -> None:
        await self._post(f"{self._ours}/topics/{self._path}", count)

    async def _post(self, url: str, count: int) -> None:
        body = {"messages": [{"payload": MESSAGE}]}

        async def task() -> None:
            for _ in range(count // UNDER_WAY):
                async with self.session.post(url, json=body) as answer:
                    assert answer.status == 200
                    await answer.json()

        await asyncio.gather(*(task() for _ in range(UNDER_WAY)))

    async def frames(self, count: int) -> None:
        await self._send_frames(f"{self._bare}/frames", count)

    async def publish_frames(self, count: int) -> None:
        await self._send_frames(f"{self._ours}/ws/v2/producer/{self._path}", count)

    async def _send_frames(self, url: str, count: int) -> None:
        frame = {"payload": base64.b64encode(MESSAGE.encode()).decode()}
        async with self.session.ws_connect(url) as socket:
            for number in range(count):
                await socket.send_json(frame)
                if number >= FRAMES_UNDER_WAY:
                    await socket.receive_json()
            for _ in range(min(FRAMES_UNDER_WAY, count)):
                await socket.receive_json()


def run(env: Environment) -> list[Row]:
    """Requests a second, and frames a second, each with a message of 100 B."""
    count = env.count(3_000, 64) // UNDER_WAY * UNDER_WAY
    with env.broker() as broker, closing(asyncio.new_event_loop()) as loop:
        topic = broker.topic()
        broker.client.create_producer(topic).close()
        ours = start_gateway(Settings(http_listen="0"))
        # Its handle keeps it there.
        server: Any = ray.remote(num_cpus=0)(BareServer).remote()
        bare: str = ray.get(server.listen.remote())

        async def measure() -> list[Row]:
            connector = aiohttp.TCPConnector(limit=UNDER_WAY)
            async with aiohttp.ClientSession(connector=connector) as session:
                caller = _Caller(session, bare, ours, topic)
                rows = [
                    await _beside("REST produce", caller.publish, caller.echo, count),
                    await _beside("WebSocket produce", caller.publish_frames, caller.frames, count),
                ]
                async with Client() as client:
                    reading = await _Reading.of(caller, client, ours, topic)
                    rows.append(await reading.row(count))
                rows.append(await _page(session, ours, env.count(TOPICS, 100)))
                return rows

        return loop.run_until_complete(measure())


class _Reading:
    """Receives and acknowledges the same messages over a socket and by a handle, one by one."""

    def __init__(self, caller: _Caller, url: str, producer: Producer, handle: Consumer) -> None:
        self._caller = caller
        self._url = url
        self._producer = producer
        self._handle = handle

    @classmethod
    async def of(cls, caller: _Caller, client: Client, ours: str, topic: str) -> _Reading:
        url = f"{ours}/ws/v2/consumer/{topic.replace('://', '/')}/socket?receiverQueueSize={FRAMES_UNDER_WAY}"
        async with caller.session.ws_connect(url):
            handle = await client.subscribe(topic, "handle", receiver_queue_size=FRAMES_UNDER_WAY)
        return cls(caller, url, await client.create_producer(topic), handle)

    async def _over_the_socket(self, count: int) -> None:
        async with self._caller.session.ws_connect(self._url) as socket:
            for _ in range(count):
                message = await socket.receive_json()
                await socket.send_json({"messageId": message["messageId"]})

    async def _by_the_handle(self, count: int) -> None:
        for _ in range(count):
            await self._handle.acknowledge(await self._handle.receive())

    async def row(self, count: int) -> Row:
        """Publish anew for each turn: what is acknowledged does not come again.

        A handle gets five times what aiohttp alone can send, which is the floor of a socket.
        """
        times: dict[str, list[float]] = {"socket": [], "handle": [], "floor": []}
        for turn in range(ROUNDS + 1):
            await self._producer.send_many([MESSAGE.encode()] * count)
            for name, work in (
                ("socket", self._over_the_socket),
                ("handle", self._by_the_handle),
                ("floor", self._caller.frames),
            ):
                began = time.perf_counter()
                await work(count)
                if turn:
                    times[name].append(time.perf_counter() - began)
        ratio = p50([bare / own for own, bare in zip(times["socket"], times["floor"], strict=True)])
        return Row(
            "WebSocket consumer, 100 B each, acknowledged",
            rate(count, p50(times["socket"])),
            f"aiohttp alone {rate(count, p50(times['floor']))}",
            ratio,
            0.4,
            note=f"an asyncio handle: {rate(count, p50(times['handle']))}",
        )


async def _page(session: aiohttp.ClientSession, ours: str, topics: int) -> Row:
    """Ask by turns for the page of topics and for what it shows; the ratio is milliseconds beyond that."""
    with pulsar_ray.Admin() as admin, ThreadPoolExecutor(CREATED_AT_ONCE) as threads:
        list(threads.map(admin.topics.create_topic, [f"page-{number}" for number in range(topics)]))
        times: dict[str, list[float]] = {"page": [], "call": []}
        for turn in range(ROUNDS + 1):
            began = time.perf_counter()
            async with session.get(f"{ours}/") as answer:
                assert answer.status == 200
                assert "</html>" in await answer.text()
            asked = time.perf_counter()
            admin.overview(sort="topic", limit=ROWS)
            if turn:
                times["page"].append(asked - began)
                times["call"].append(time.perf_counter() - asked)
    page_ms, call_ms = 1e3 * p50(times["page"]), 1e3 * p50(times["call"])
    return Row(
        f"the page of {topics:,} topics, ms beyond its call",
        f"{page_ms:.1f} ms",
        f"the call of Admin {call_ms:.1f} ms",
        page_ms - call_ms,
        30,
        at_most=True,
    )


Work = Callable[[int], Awaitable[None]]


async def _beside(what: str, ours: Work, floor: Work, count: int) -> Row:
    """Run both by turns, with 32 requests or 900 frames under way."""
    times: dict[str, list[float]] = {"ours": [], "floor": []}
    for turn in range(ROUNDS + 1):
        for name, work in (("ours", ours), ("floor", floor)):
            began = time.perf_counter()
            await work(count)
            if turn:
                times[name].append(time.perf_counter() - began)
    ratio = p50([bare / own for own, bare in zip(times["ours"], times["floor"], strict=True)])
    return Row(
        f"{what}, 100 B each",
        rate(count, p50(times["ours"])),
        f"aiohttp alone {rate(count, p50(times['floor']))}",
        ratio,
        0.5,
    )
