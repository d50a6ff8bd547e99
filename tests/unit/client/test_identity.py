"""A client with credentials acts as a role, and may what that role may."""

from __future__ import annotations

import base64
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.authentication import (
    Authentication,
    AuthenticationBasic,
    AuthenticationTLS,
    AuthenticationToken,
)
from pulsar_ray.config import Settings
from pulsar_ray.errors import AuthenticationError, AuthorizationError, PulsarException
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.security.keys import new_secret
from pulsar_ray.security.tokens import create_token
from pulsar_ray.testing.stub_cluster import StubCluster
from tests.certificates import Signer

KEY = new_secret("HS256")
TOPIC = "acme/ns/t"

Open = Callable[[Client], Any]
PRODUCE: Open = lambda client: client.create_producer(TOPIC)  # noqa: E731
OPENED: dict[str, Open] = {
    "producer": PRODUCE,
    "consumer": lambda client: client.subscribe(TOPIC, "s"),
    "consumer of a list": lambda client: client.subscribe(["acme/ns/other", TOPIC], "s"),
    "consumer of a pattern": lambda client: client.subscribe(re.compile("persistent://acme/ns/t.*"), "s"),
    "reader": lambda client: client.create_reader(TOPIC, MessageId.earliest),
    "table view": lambda client: client.create_table_view(TOPIC),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubCluster]:
    directory = tmp_path_factory.mktemp("broker")
    settings = Settings(
        data_dir=str(directory),
        authentication_enabled=True,
        token_secret_key=f"data:;base64,{base64.b64encode(KEY).decode()}",
        authorization_enabled=True,
        super_user_roles="boss",
    )
    cluster = StubCluster(directory, settings)
    admin = Admin._on(cluster)
    admin.tenants.create("acme", admin_roles=["lead"])
    admin.namespaces.create("acme/ns")
    for topic in (TOPIC, "acme/ns/other"):
        admin.topics.create_topic(topic)
    for role, action in (("reader", "consume"), ("writer", "produce")):
        admin.namespaces.permissions.grant("acme/ns", role, [action])
    admin.topics.permissions.grant(TOPIC, "visitor", ["consume"])
    yield cluster
    admin.close()
    cluster.close()


def token(role: str) -> str:
    return create_token(KEY, "HS256", role)


@pytest.fixture
def acting(cluster: StubCluster) -> Iterator[Callable[[Authentication | None], Client]]:
    """Make clients with credentials."""
    clients = []

    def act(authentication: Authentication | None) -> Client:
        clients.append(Client._on(cluster, authentication=authentication))
        return clients[-1]

    yield act
    for client in clients:
        client.close()


@pytest.mark.parametrize("what", OPENED)
@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("boss", set(OPENED)),
        ("lead", set(OPENED)),
        ("writer", {"producer"}),
        ("reader", set(OPENED) - {"producer"}),
        ("visitor", {"consumer", "reader", "table view"}),
        ("nobody", set()),
    ],
)
def test_a_role_may_what_it_was_granted(acting: Any, role: str, what: str, may: set[str]) -> None:
    client = acting(AuthenticationToken(token(role)))
    if what in may:
        OPENED[what](client).close()
    else:
        with pytest.raises(AuthorizationError, match=f"'{role}' (has no permission|is no)"):
            OPENED[what](client)


def test_a_client_without_credentials_is_trusted(acting: Any) -> None:
    for open_it in OPENED.values():
        open_it(acting(None)).close()


def raising() -> str:
    raise RuntimeError("no vault")


@pytest.mark.parametrize(
    ("authentication", "reason"),
    [
        (AuthenticationToken("nonsense"), "token"),
        (AuthenticationToken(create_token(new_secret("HS256"), "HS256", "boss")), "token"),
        (AuthenticationToken(raising), "no vault"),
        (AuthenticationToken(lambda: 7), "returned 7"),  # type: ignore[arg-type,return-value]
        (AuthenticationBasic("ann", "pen"), "passwords are not taken here"),
        (AuthenticationBasic(auth_params_string='{"username": "ann"}'), "passwords are not taken here"),
    ],
)
def test_wrong_credentials_are_refused(acting: Any, authentication: Authentication, reason: str) -> None:
    for open_it in OPENED.values():
        with pytest.raises(AuthenticationError, match=reason):
            open_it(acting(authentication))


def test_a_refusal_leaves_no_subscription(cluster: StubCluster, acting: Any) -> None:
    with pytest.raises(AuthorizationError):
        acting(AuthenticationToken(token("writer"))).subscribe("acme/ns/other", "never")
    with pytest.raises(AuthorizationError):
        acting(AuthenticationToken(token("reader"))).create_producer("acme/ns/new")
    admin = Admin._on(cluster)
    assert "never" not in admin.topics.subscriptions("acme/ns/other")
    assert "persistent://acme/ns/new" not in admin.topics.list("acme/ns")
    admin.close()


def test_a_token_is_asked_for_each_time_that_a_handle_opens(acting: Any) -> None:
    given = [token("writer"), token("reader")]
    client = acting(AuthenticationToken(lambda: given.pop(0)))
    client.create_producer(TOPIC).close()
    with pytest.raises(AuthorizationError):
        client.create_producer(TOPIC)


def test_errors_can_be_pickled(acting: Any) -> None:
    with pytest.raises(PulsarException) as caught:
        PRODUCE(acting(AuthenticationToken(token("nobody"))))
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is AuthorizationError
    assert "'nobody'" in str(again)


def test_a_certificate_is_a_role_as_well(tmp_path: Path) -> None:
    signer = Signer(tmp_path)
    served = signer.give("broker", "broker")
    cluster = StubCluster(
        tmp_path / "data",
        Settings(
            data_dir=str(tmp_path / "data"),
            authentication_enabled=True,
            authorization_enabled=True,
            super_user_roles="boss",
            tls_certificate_file_path=served[0],
            tls_key_file_path=served[1],
            tls_trust_certs_file_path=str(signer.file),
        ),
    )
    boss, other = signer.give("boss", "boss"), signer.give("other", "other")
    with Client._on(cluster, authentication=AuthenticationTLS(*boss)) as client:
        client.create_producer("t").send(b"")
    with (
        Client._on(cluster, authentication=AuthenticationTLS(*other)) as client,
        pytest.raises(AuthorizationError, match="'other' has no permission"),
    ):
        client.create_producer("t")
    with (
        Client._on(cluster, authentication=AuthenticationTLS(boss[0], other[1])) as client,
        pytest.raises(AuthenticationError, match="not the key"),
    ):
        client.create_producer("t")
    with (
        Client._on(cluster, authentication=AuthenticationToken("x5c")) as client,
        pytest.raises(AuthenticationError, match="tokens are not taken here"),
    ):
        client.create_producer("t")
    cluster.close()


def test_a_certificate_is_refused_where_nobody_may_sign(acting: Any, tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match="certificates are not taken here"):
        PRODUCE(acting(AuthenticationTLS(*Signer(tmp_path).give("boss", "boss"))))


def test_a_broker_that_asks_nobody_takes_any_token(tmp_path: Path) -> None:
    cluster = StubCluster(tmp_path)
    with Client._on(cluster, authentication=AuthenticationToken("any")) as client:
        client.create_producer("t").close()
    cluster.close()
