"""A gateway over a broker without Ray, on a loop of its own, and a caller that knows only HTTP."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.asyncio.client import Client as LoopClient
from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.gateway.application import Gateway
from pulsar_ray.testing.stub_cluster import StubCluster

_NAMES = itertools.count()


@dataclass
class Answer:
    """What came back."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Http:
    """Calls the gateway as any program would."""

    def __init__(self, url: str, cluster: StubCluster) -> None:
        self.url = url
        self.cluster = cluster
        self.address = url.removeprefix("http://")

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            sent = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            if body is not None:
                headers.setdefault("Content-Type", "application/json")
            connection.request(method, path, sent, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read(), dict(response.headers))
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        """Call, and return the JSON of a good answer; None where it has no body."""
        answer = self(method, path, body)
        assert answer.status in (200, 202, 204), (answer.status, answer.body)
        return answer.json if answer.body else None


def unread(address: str, path: str) -> socket.socket:
    """Open a WebSocket, of which nobody reads a byte behind the handshake."""
    host, _, port = address.rpartition(":")
    one = socket.socket()
    # Else the kernel takes a great deal for a program that reads nothing.
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(20)
    one.connect((host, int(port)))
    head = f"GET /ws/v2/{path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    one.sendall(f"{head}Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += one.recv(1)
    assert answer.startswith(b"HTTP/1.1 101 "), answer
    return one


@contextmanager
def serving(
    directory: Path, *, exporters: Callable[[], Sequence[str]] = tuple, **settings: Any
) -> Iterator[Http]:
    """A gateway with these settings over a broker of its own."""
    cluster = StubCluster(directory)
    admin = Admin._on(cluster)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> Gateway:
        gateway = Gateway(admin, LoopClient._on(cluster), Settings(**settings), exporters=exporters)
        await gateway.listen("127.0.0.1", 0)
        return gateway

    gateway = asyncio.run_coroutine_threadsafe(start(), loop).result(30)
    yield Http(gateway.url, cluster)
    asyncio.run_coroutine_threadsafe(gateway.close(), loop).result(60)
    admin.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    cluster.close()


@pytest.fixture(scope="module")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with serving(tmp_path_factory.mktemp("broker")) as http:
        yield http


@pytest.fixture
def call(http_server: Http) -> Http:
    return http_server


@pytest.fixture
def client(http_server: Http) -> Iterator[Client]:
    client = Client._on(http_server.cluster)
    yield client
    client.close()


@pytest.fixture
def name() -> str:
    """A name that no test has used before."""
    return f"t{next(_NAMES)}"
