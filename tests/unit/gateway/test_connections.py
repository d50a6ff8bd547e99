"""Callers that are slow, many or behind a proxy, and what is under way when the gateway stops."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from pulsar_ray.admin.admin import Admin
from pulsar_ray.admin.tenants import Tenants
from pulsar_ray.asyncio.client import Client as LoopClient
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.gateway import application, body_room, connections, websocket
from pulsar_ray.gateway.application import Gateway
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Http, serving, unread


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Http]:
    """A gateway that waits for half a second, and takes three connections."""
    hasty = lambda: connections.Connections(most=3, head_s=0.5, body_s=0.5)  # noqa: E731
    monkeypatch.setattr(application, "Connections", hasty)
    monkeypatch.setattr(connections, "KEEP_ALIVE_S", 0.5)
    with serving(tmp_path) as http_server:
        yield http_server


def connected(server: Http, sent: bytes = b"") -> socket.socket:
    host, _, port = server.address.rpartition(":")
    one = socket.create_connection((host, int(port)), timeout=20)
    one.sendall(sent)
    return one


def is_closed(one: socket.socket) -> bool:
    """Whether the other end has closed it; waits."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def test_whoever_never_ends_a_head_is_cut_off(impatient: Http) -> None:
    with connected(impatient) as silent, connected(impatient, b"GET / HTTP/1.1\r\nHost: x") as slow:
        slow.sendall(b"y")
        assert is_closed(silent)
        assert is_closed(slow)
    assert impatient("GET", "/admin/v2/clusters").status == 200


def test_whoever_never_ends_a_body_is_told(impatient: Http) -> None:
    head = b"PUT /admin/v2/tenants/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connected(impatient, head + b"Content-Length: 9\r\n\r\n{") as slow:
        answer = slow.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within 0.5 s" in answer
    assert "t" not in impatient.ok("GET", "/admin/v2/tenants")


def test_a_connection_too_many_is_closed_and_room_comes_back(impatient: Http) -> None:
    held = [connected(impatient) for _ in range(3)]
    with connected(impatient) as fourth:
        assert is_closed(fourth)
    for one in held:
        one.close()

    def is_served() -> bool:
        try:
            return impatient("GET", "/admin/v2/clusters").status == 200
        except (ConnectionError, http.client.HTTPException):
            return False

    wait_until(is_served, what="room for another one")


def test_a_connection_serves_one_request_after_the_other(impatient: Http) -> None:
    connection = http.client.HTTPConnection(impatient.address, timeout=20)
    for _ in range(5):
        connection.request("GET", "/admin/v2/clusters")
        assert connection.getresponse().read() == b'["standalone"]'
    assert is_closed(connection.sock)
    connection.close()


def test_large_bodies_wait_for_each_other_and_small_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BodyRoom", lambda: body_room.BodyRoom(5 << 20))
    hasty = lambda: connections.Connections(body_s=0.5)  # noqa: E731
    monkeypatch.setattr(application, "Connections", hasty)
    path = "/topics/persistent/public/default/t"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    with serving(tmp_path) as server:
        server.ok("PUT", "/admin/v2/persistent/public/default/t")
        with connected(server, head + b"Content-Length: 4000000\r\n\r\n{") as first:
            wait_until(lambda: server("GET", "/admin/v2/clusters").status == 200)
            with connected(
                server, head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            ) as second:
                body = {"messages": [{"payload": "x"}]}
                assert server("POST", path, body).status == 200
                assert first.recv(1 << 16).startswith(b"HTTP/1.1 408 ")
                # It waited for the first one, and got its room in time or did not.
                assert second.recv(1 << 16)[9:12] in (b"200", b"503")
        large = {"messages": [{"payload": "x" * (4 << 20)}]}
        assert server("POST", path, large).status == 200


@contextmanager
def closable(directory: Path) -> Iterator[tuple[Gateway, asyncio.AbstractEventLoop]]:
    """A gateway that the test closes itself."""
    cluster = StubCluster(directory)
    admin = Admin._on(cluster)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> Gateway:
        gateway = Gateway(admin, LoopClient._on(cluster), Settings())
        await gateway.listen("127.0.0.1", 0)
        return gateway

    yield asyncio.run_coroutine_threadsafe(start(), loop).result(30), loop
    admin.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    cluster.close()


def test_what_is_under_way_is_answered_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(_: Any) -> list[str]:
        begun.set()
        may_end.wait(20)
        return ["the answer"]

    monkeypatch.setattr(Tenants, "list", slow)
    with closable(tmp_path) as (gateway, loop), ThreadPoolExecutor() as threads:
        server = Http(gateway.url, StubCluster(tmp_path / "other"))
        answer = threads.submit(server.ok, "GET", "/admin/v2/tenants")
        assert begun.wait(20)
        closing = asyncio.run_coroutine_threadsafe(gateway.close(), loop)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(20)
        assert not closing.done()
        may_end.set()
        assert answer.result(20) == ["the answer"]
        closing.result(30)
        with pytest.raises(ConnectionRefusedError):
            connected(server)
        server.cluster.close()


def test_nothing_is_kept_of_connections_that_have_ended(tmp_path: Path) -> None:
    with closable(tmp_path) as (gateway, loop):
        server = Http(gateway.url, StubCluster(tmp_path / "other"))
        for _ in range(20):
            assert server("GET", "/admin/v2/clusters").status == 200
            connected(server).close()
        wait_until(lambda: not gateway._connections._deadlines, what="the end of all deadlines")
        asyncio.run_coroutine_threadsafe(gateway.close(), loop).result(30)
        server.cluster.close()


def test_nobody_who_reads_nothing_keeps_it_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_S", 0.5)
    with closable(tmp_path) as (gateway, loop):
        address = gateway.url.removeprefix("http://")
        path = "persistent/public/default/t"
        with unread(address, f"consumer/{path}/one"), unread(address, f"consumer/{path}/other"):
            with connect(f"ws://{address}/ws/v2/producer/{path}") as producer:
                for _ in range(20):
                    producer.send('{"payload": "%s"}' % ("x" * (1 << 20)))
                    assert '"ok"' in str(producer.recv(20))
            asyncio.run_coroutine_threadsafe(gateway.close(), loop).result(30)


@pytest.fixture(scope="module")
def behind_a_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with serving(tmp_path_factory.mktemp("proxied"), http_advertised_url="https://queues.example") as server:
        yield server


def test_a_proxy_gives_it_another_name(behind_a_proxy: Http) -> None:
    outer = {"Host": "queues.example", "Origin": "https://queues.example"}
    assert behind_a_proxy("PUT", "/admin/v2/persistent/public/default/t", **outer).status == 204
    found = behind_a_proxy("GET", "/lookup/v2/topic/persistent/public/default/t", **outer).json
    assert found["httpUrl"] == "https://queues.example"
    assert behind_a_proxy.ok("GET", "/openapi.json")["servers"] == [{"url": "https://queues.example"}]
    # A certificate of its own at the usual port.
    assert (
        behind_a_proxy("GET", "/admin/v2/tenants", Origin="https://localhost", Host="localhost").status == 200
    )
    # A proxy that does not pass the name on.
    assert behind_a_proxy("GET", "/admin/v2/tenants", Origin="https://queues.example").status == 200
    for wrong in ({"Host": "evil.example"}, {**outer, "Origin": "https://evil.example"}):
        assert behind_a_proxy("GET", "/admin/v2/tenants", **wrong).status == 403


def test_the_audit_log_has_the_address_that_the_proxy_saw(
    behind_a_proxy: Http, http_server: Http, caplog: pytest.LogCaptureFixture
) -> None:
    forwarded = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7"}
    with caplog.at_level(logging.INFO, "pulsar_ray.audit"):
        behind_a_proxy("GET", "/admin/v2/tenants", **forwarded)
        http_server("GET", "/admin/v2/tenants", **forwarded)
    lines = [record.getMessage() for record in caplog.records]
    assert "at 203.0.113.7:" in lines[0]
    assert "at 127.0.0.1:" in lines[1]


def test_what_somebody_claims_before_the_proxy_is_not_believed(
    behind_a_proxy: Http, caplog: pytest.LogCaptureFixture
) -> None:
    request = http.client.HTTPConnection(behind_a_proxy.address)
    request.putrequest("GET", "/admin/v2/tenants")
    request.putheader("X-Forwarded-For", "198.51.100.1")
    request.putheader("X-Forwarded-For", "203.0.113.7")
    with caplog.at_level(logging.INFO, "pulsar_ray.audit"):
        request.endheaders()
        assert request.getresponse().status == 200
    request.close()
    assert "at 203.0.113.7:" in caplog.records[0].getMessage()


def test_a_body_that_is_packed_is_refused_and_not_unpacked(call: Http) -> None:
    packed = gzip.compress(bytes(64 << 20))
    answer = call("POST", "/topics/persistent/public/default/t", packed, **{"Content-Encoding": "gzip"})
    assert answer.status == 415
    assert "send bodies as they are" in answer.json["reason"]
    assert (
        call("POST", "/topics/persistent/public/default/t", "{}", **{"Content-Encoding": "x" * 99}).status
        == 415
    )
    for coding in ("identity", "Identity"):
        path = "/admin/v2/namespaces/public/default/messageTTL"
        assert call("POST", path, 60, **{"Content-Encoding": coding}).status == 204


@pytest.mark.parametrize("url", ["queues.example", "https://queues.example/path", "ftp://x", "https://a b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfiguration, match="http_advertised_url is"):
        Settings(http_advertised_url=url)
