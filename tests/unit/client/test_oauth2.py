"""Tokens of OAuth 2: asked for once, kept while they are valid, and every failure says what it was."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.client.endpoint.oauth2 import ClientCredentials
from pulsar_ray.client.options.authentication import AuthenticationOauth2
from pulsar_ray.config import Settings
from pulsar_ray.errors import AuthenticationError, AuthorizationError
from pulsar_ray.security.keys import new_secret
from pulsar_ray.security.tokens import create_token
from pulsar_ray.testing.stub_cluster import StubCluster

SECRET = {"client_id": "shop", "client_secret": "hush"}


class Issuer:
    """Answers as an issuer of tokens does."""

    def __init__(self) -> None:
        self.asked: list[dict[str, list[str]]] = []
        self.answer: Any = {"access_token": "token-1", "expires_in": 100}
        self.status = 200
        self.moved = ""
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if issuer.moved:
                    self.send_response(302)
                    self.send_header("Location", issuer.moved)
                    self.end_headers()
                    return
                known = self.path == "/realm/.well-known/openid-configuration"
                found = {"token_endpoint": f"{issuer.url}/token"} if known else {}
                self._reply(200, json.dumps(found).encode())

            def do_POST(self) -> None:
                issuer.asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                body = issuer.answer
                self._reply(issuer.status, body if isinstance(body, bytes) else json.dumps(body).encode())

            def _reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def parameters(self, **others: Any) -> str:
        return json.dumps({"issuer_url": f"{self.url}/realm", **SECRET, **others})


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.close()


def test_a_token_is_kept_until_most_of_its_life_is_over(issuer: Issuer) -> None:
    now = [1000.0]
    credentials = ClientCredentials(issuer.parameters(audience="queues", scope="a b"), lambda: now[0])
    assert credentials.token() == "token-1"
    issuer.answer = {"access_token": "token-2", "expires_in": 100}
    now[0] += 89
    assert credentials.token() == "token-1"
    now[0] += 2
    assert credentials.token() == "token-2"
    form = {"grant_type": ["client_credentials"], "client_id": ["shop"], "client_secret": ["hush"]}
    assert issuer.asked == [{**form, "audience": ["queues"], "scope": ["a b"]}] * 2


def test_credentials_are_read_from_where_they_are_named(issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text(json.dumps(SECRET))
    data = base64.b64encode(path.read_bytes()).decode()
    for place in (str(path), path.as_uri(), f"data:application/json;base64,{data}"):
        given = json.dumps({"issuer_url": f"{issuer.url}/realm/", "private_key": place})
        assert ClientCredentials(given).token() == "token-1"


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        ("{}", "has no issuer_url"),
        ('{"issuer_url": "http://issuer.example", "client_id": "a", "client_secret": "b"}', "by https alone"),
        (
            '{"issuer_url": "http://127.evil.example", "client_id": "a", "client_secret": "b"}',
            "by https alone",
        ),
        ('{"issuer_url": "https://x", "private_key": "data:;base64,%"}', "private_key: it is no data: URL"),
        ('{"issuer_url": "file:///etc", "client_id": "a", "client_secret": "b"}', "by https alone"),
        ('{"issuer_url": "https://x", "client_id": "a"}', "has no client_secret"),
        (
            '{"issuer_url": "https://x", "private_key": "/nowhere/key"}',
            "private_key: '/nowhere/key' cannot be read .No such file",
        ),
        ('{"issuer_url": "http://127.0.0.1:9", "client_id": "a", "client_secret": "b"}', "does not answer"),
        ('{"issuer_url": "https://x:port", "client_id": "a", "client_secret": "b"}', "is no address"),
        ('{"issuer_url": "https://[::1", "client_id": "a", "client_secret": "b"}', "is no address"),
        ('{"issuer_url": "https://x y", "client_id": "a", "client_secret": "b"}', "is no address"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_wrong_parameters_are_named(parameters: str, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason):
        ClientCredentials(parameters).token()


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (401, {"error": "invalid_client"}, "answers 401: .*invalid_client"),
        (200, b"<html>", "is no JSON"),
        (200, {"expires_in": 5}, "has no access_token"),
        (200, {"access_token": 7}, "has no access_token"),
        (200, b"[" * 100_000, "is no JSON"),
    ],
)
def test_an_issuer_that_gives_none_is_named(issuer: Issuer, status: int, answer: Any, reason: str) -> None:
    issuer.status, issuer.answer = status, answer
    with pytest.raises(AuthenticationError, match=reason):
        ClientCredentials(issuer.parameters()).token()


def test_a_secret_is_in_no_error(issuer: Issuer) -> None:
    issuer.status, issuer.answer = 500, {"error": "oops"}
    with pytest.raises(AuthenticationError) as caught:
        ClientCredentials(issuer.parameters()).token()
    assert "hush" not in str(caught.value)


def test_a_client_acts_as_the_role_of_its_token(issuer: Issuer, tmp_path: Path) -> None:
    key = new_secret("HS256")
    settings = Settings(
        data_dir=str(tmp_path),
        authentication_enabled=True,
        token_secret_key=f"data:;base64,{base64.b64encode(key).decode()}",
        authorization_enabled=True,
        super_user_roles="boss",
    )
    cluster = StubCluster(tmp_path, settings)
    for role in ("boss", "nobody"):
        issuer.answer = {"access_token": create_token(key, "HS256", role), "expires_in": 60}
        with Client._on(cluster, authentication=AuthenticationOauth2(issuer.parameters())) as client:
            if role == "boss":
                client.create_producer("t").close()
            else:
                with pytest.raises(AuthorizationError):
                    client.create_producer("t")
    cluster.close()


def test_an_issuer_that_leads_elsewhere_is_not_followed_where_others_listen(issuer: Issuer) -> None:
    issuer.moved = "http://issuer.example/"
    with pytest.raises(AuthenticationError, match=r"issuer.example/: credentials are sent by https alone"):
        ClientCredentials(issuer.parameters()).token()
    assert not issuer.asked


def test_what_is_no_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP\r\n")
                connection.recv(1000)

        thread = threading.Thread(target=greet)
        thread.start()
        issuer_url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(AuthenticationError, match="no HTTP answers: 220 mail"):
            ClientCredentials(json.dumps({"issuer_url": issuer_url, **SECRET})).token()
        thread.join()
