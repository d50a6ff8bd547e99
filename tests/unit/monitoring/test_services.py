"""Questions to Prometheus, Grafana and endpoints, answered by a server of the test."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pulsar_ray.monitoring.services import endpoint, endpoints, grafana_state, prometheus_state


class Answering:
    """An HTTP server with an answer for each path; 404 for others. `asked`: what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        answering = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                answering.asked.append(f"{self.command} {self.path}")
                body = answering.answers.get(self.path)
                self.send_response(404 if body is None else 200)
                self.end_headers()
                self.wfile.write(body.encode() if isinstance(body, str) else json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                """Say nothing on standard error."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.close()


def as_prometheus(server: Answering, *groups: str) -> None:
    server.answers["/api/v1/status/flags"] = {"status": "success", "data": {"config.file": "/etc/p.yml"}}
    server.answers["/api/v1/rules"] = {"data": {"groups": [{"name": group} for group in groups]}}


@pytest.mark.parametrize(
    ("groups", "has_rules"), [((), False), (("node",), False), (("node", "pulsar_ray"), True)]
)
def test_prometheus_says_what_it_reads_and_has(server: Answering, groups: Any, has_rules: bool) -> None:
    as_prometheus(server, *groups)
    state = prometheus_state(server.url)
    assert (state.problem, state.settings, state.has_rules) == ("", Path("/etc/p.yml"), has_rules)
    assert not any("reload" in asked for asked in server.asked)


def test_prometheus_is_asked_to_read_anew_before(server: Answering) -> None:
    as_prometheus(server, "pulsar_ray")
    # It answers 404 without --web.enable-lifecycle: the rest goes on.
    assert prometheus_state(server.url, reload=True).has_rules
    assert server.asked[0] == "POST /-/reload"


@pytest.mark.parametrize("answer", ["<html>", [], {"data": None}])
def test_another_service_is_no_prometheus(server: Answering, answer: Any) -> None:
    server.answers["/api/v1/status/flags"] = answer
    assert prometheus_state(server.url).problem


@pytest.mark.parametrize(
    ("answer", "works"), [({"database": "ok"}, True), ({"database": "x"}, False), ([], False)]
)
def test_grafana_says_whether_it_works(server: Answering, answer: Any, works: bool) -> None:
    server.answers["/api/health"] = answer
    assert (grafana_state(server.url).problem == "") is works


def test_an_endpoint_is_counted(server: Answering) -> None:
    server.answers["/metrics"] = '# HELP\nray_node_cpu 1\nray_pulsar_ray_topics{state="running"} 1\n' * 2
    assert endpoint(f"{server.url}/metrics").series == 2


@pytest.mark.parametrize("ask", [prometheus_state, grafana_state, endpoint])
@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1", "http://127.0.0.1:99999", "nonsense", "http://[", "", "http://a b", "http://a\n"],
)
def test_nobody_there_is_a_problem_and_no_exception(ask: Any, url: str) -> None:
    assert ask(url).problem


@pytest.mark.parametrize("ask", [prometheus_state, grafana_state, endpoint])
def test_a_port_that_another_service_has_is_a_problem_and_no_exception(ask: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve() -> None:
            with other.accept()[0] as connection:
                connection.recv(4096)
                connection.sendall(b"-ERR unknown command 'GET'\r\n")

        thread = Thread(target=serve)
        thread.start()
        assert ask(f"http://127.0.0.1:{other.getsockname()[1]}").problem
        thread.join()


def test_endpoints_are_asked_at_the_same_time_and_answer_in_order(server: Answering) -> None:
    server.answers["/metrics"] = "ray_pulsar_ray_topics 1\n"
    urls = [f"{server.url}/metrics", f"{server.url}/none", f"{server.url}/metrics"]
    found = endpoints(urls)
    assert [each.url for each in found] == urls
    assert [bool(each.problem) for each in found] == [False, True, False]
    assert endpoints([]) == []
