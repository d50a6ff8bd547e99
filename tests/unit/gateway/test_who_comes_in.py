"""Who is asked at the gateway, and what they are told."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from pulsar_ray.security.keys import new_key_pair, new_secret
from pulsar_ray.security.passwords import apr1
from pulsar_ray.security.tokens import create_token, signing_key
from tests.unit.gateway.conftest import Http, serving

KEY = new_secret("HS256")
TOPIC = "persistent/public/default/asked"


def in_url(content: bytes) -> str:
    return f"data:;base64,{base64.b64encode(content).decode()}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    users = tmp_path_factory.mktemp("users") / "htpasswd"
    users.write_text(f"ann:{apr1('pencil', 'abcdefgh')}\n")
    with serving(
        tmp_path_factory.mktemp("broker"),
        authentication_enabled=True,
        token_secret_key=in_url(KEY),
        basic_auth_conf=str(users),
    ) as http:
        yield http


def bearer(role: str = "shop", key: bytes = KEY, expires_s: int | None = None) -> dict[str, str]:
    return {"Authorization": f"Bearer {create_token(key, 'HS256', role, expires_s)}"}


def test_who_shows_a_token_or_a_password_is_served(guarded: Http) -> None:
    assert guarded("GET", "/admin/v2/tenants", **bearer()).status == 200
    password = base64.b64encode(b"ann:pencil").decode()
    assert guarded("GET", "/admin/v2/tenants", Authorization=f"Basic {password}").status == 200


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({}, "Authentication required"),
        (bearer(key=new_secret("HS256")), "the token is signed with another key"),
        (bearer(expires_s=int(time.time()) - 1), "the token has expired"),
        (
            {"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."},
            "the token is signed by 'none': the key is for HS256",
        ),
        ({"Authorization": "Bearer x"}, "it is no token: three parts of base64 with dots between them"),
        ({"Authorization": "Basic YW5uOnBlbg=="}, "unknown user, or another password"),
        ({"Authorization": "Negotiate x"}, "Authorization is neither Bearer nor Basic"),
    ],
    ids=["nothing", "another key", "expired", "none", "garbage", "another password", "another way"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/admin/v2/tenants"), ("GET", "/nowhere"), ("POST", f"/topics/{TOPIC}"), ("GET", "/health")],
)
def test_others_are_told_why_not(
    guarded: Http, headers: dict[str, str], reason: str, method: str, path: str
) -> None:
    answer = guarded(method, path, **headers)
    assert answer.status == 401
    assert answer.json == {"reason": reason}
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_token_in_the_address_is_for_web_sockets_alone(guarded: Http) -> None:
    guarded("PUT", f"/admin/v2/{TOPIC}", **bearer())
    token = bearer()["Authorization"].split()[1]
    assert guarded("GET", f"/admin/v2/tenants?token={token}").status == 401
    address = f"{guarded.url.replace('http', 'ws', 1)}/ws/v2/producer/{TOPIC}"
    with connect(f"{address}?token={token}") as socket:
        socket.send('{"payload": "aGk="}')
        assert '"ok"' in str(socket.recv(30))
    with connect(address, additional_headers=bearer()):
        pass
    for query in ("", f"?token={token}x"):
        with pytest.raises(InvalidStatus) as caught:
            connect(f"{address}{query}").__enter__()
        assert caught.value.response.status_code == 401


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_public_keys_check_tokens_of_their_own_algorithm(
    tmp_path_factory: pytest.TempPathFactory, algorithm: str
) -> None:
    private, public = new_key_pair(algorithm)
    with serving(
        tmp_path_factory.mktemp("broker"),
        authentication_enabled=True,
        token_public_key=in_url(public),
        token_public_alg=algorithm,
        anonymous_user_role="guest",
    ) as http:
        token = create_token(signing_key(in_url(private), algorithm, "key"), algorithm, "shop")
        assert http("GET", "/admin/v2/tenants", Authorization=f"Bearer {token}").status == 200
        assert http("GET", "/admin/v2/tenants").status == 200
        assert http("GET", "/admin/v2/tenants", **bearer(key=public[:32])).status == 401


def test_no_secret_is_in_the_answer_about_settings(guarded: Http) -> None:
    answer = guarded("GET", "/admin/v2/brokers/configuration/runtime", **bearer())
    assert base64.b64encode(KEY) not in answer.body
