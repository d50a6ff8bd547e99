"""What roles may do at the gateway, by permissions that are granted there."""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from pulsar_ray.admin.admin import Admin
from pulsar_ray.asyncio.client import Client as LoopClient
from pulsar_ray.client.client import Client
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration, TopicNotFound
from pulsar_ray.gateway.application import Gateway
from pulsar_ray.model.enums import InitialPosition
from pulsar_ray.security.keys import new_secret
from pulsar_ray.security.tokens import create_token
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Answer, Http, serving

KEY = new_secret("HS256")
IN_URL = f"data:;base64,{base64.b64encode(KEY).decode()}"
NAMESPACE = "/admin/v2/namespaces/acme/ns"
TOPIC = "/admin/v2/persistent/acme/ns/t"
MESSAGE = {"messages": [{"payload": "hi"}]}


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with serving(
        tmp_path_factory.mktemp("broker"),
        authentication_enabled=True,
        token_secret_key=IN_URL,
        authorization_enabled=True,
        super_user_roles="root, boss",
    ) as http:
        assert ask(http, "boss", "PUT", "/admin/v2/tenants/acme", {"adminRoles": ["lead"]}).status == 204
        assert ask(http, "lead", "PUT", NAMESPACE).status == 204
        assert ask(http, "lead", "PUT", TOPIC).status == 204
        yield http


def token(role: str) -> str:
    return create_token(KEY, "HS256", role)


def ask(http: Http, role: str, method: str, path: str, body: object = None) -> Answer:
    return http(method, path, body, Authorization=f"Bearer {token(role)}")


def status(http: Http, role: str, method: str, path: str, body: object = None) -> int:
    return ask(http, role, method, path, body).status


def grant(http: Http, path: str, role: str, *actions: str) -> None:
    assert status(http, "lead", "POST", f"{path}/permissions/{role}", list(actions)) == 204


def test_a_role_without_permissions_may_nothing_and_is_told(door: Http) -> None:
    for method, path, body in (
        ("GET", f"{TOPIC}/stats", None),
        ("POST", "/topics/persistent/acme/ns/t", MESSAGE),
        ("PUT", f"{TOPIC}/subscription/s", None),
        ("DELETE", TOPIC, None),
        ("GET", "/admin/v2/persistent/acme/ns", None),
        ("GET", f"{NAMESPACE}/retention", None),
        ("POST", f"{NAMESPACE}/permissions/stranger", ["produce"]),
        ("PUT", "/admin/v2/tenants/mine", {}),
        ("GET", "/admin/v2/brokers/configuration/runtime", None),
        ("GET", "/admin/v2/persistent/acme/nowhere/t/stats", None),
    ):
        answer = ask(door, "stranger", method, path, body)
        assert answer.status == 403, (method, path, answer.body)
        assert "'stranger'" in answer.json["reason"]
    assert status(door, "stranger", "GET", "/admin/v2/clusters") == 200
    assert status(door, "stranger", "GET", "/nowhere") == 404


def test_producing_and_consuming_are_granted_apart(door: Http) -> None:
    grant(door, NAMESPACE, "sender", "produce")
    grant(door, TOPIC, "reader", "consume")
    wait_until(lambda: status(door, "sender", "POST", "/topics/persistent/acme/ns/t", MESSAGE) == 200)
    wait_until(lambda: status(door, "reader", "PUT", f"{TOPIC}/subscription/own") in (204, 409))
    assert status(door, "sender", "PUT", f"{TOPIC}/subscription/s") == 403
    assert status(door, "reader", "POST", "/topics/persistent/acme/ns/t", MESSAGE) == 403
    for role in ("sender", "reader"):
        assert status(door, role, "GET", f"{TOPIC}/stats") == 200
        assert status(door, role, "DELETE", TOPIC) == 403
    assert status(door, "reader", "GET", "/admin/v2/persistent/acme/ns") == 403
    assert ask(door, "lead", "GET", f"{TOPIC}/permissions").json == {
        "sender": ["produce"],
        "reader": ["consume"],
    }
    assert status(door, "lead", "DELETE", f"{NAMESPACE}/permissions/sender") == 204
    wait_until(lambda: status(door, "sender", "POST", "/topics/persistent/acme/ns/t", MESSAGE) == 403)
    assert status(door, "lead", "DELETE", f"{NAMESPACE}/permissions/nobody") == 204


def test_a_tenants_administrator_keeps_to_the_tenant(door: Http) -> None:
    assert status(door, "lead", "GET", "/admin/v2/tenants/acme") == 200
    assert status(door, "lead", "GET", "/admin/v2/tenants") == 403
    assert status(door, "lead", "POST", "/admin/v2/tenants/acme", {"adminRoles": ["lead", "x"]}) == 403
    assert status(door, "lead", "PUT", "/admin/v2/namespaces/public/mine") == 403
    assert status(door, "lead", "GET", "/admin/v2/persistent/public/default/t/stats") == 403
    # A slash that is encoded does not lead out of the tenant.
    assert status(door, "lead", "PUT", "/admin/v2/persistent/acme%2F..%2Fpublic/default/t") == 412
    assert status(door, "lead", "PUT", "/admin/v2/persistent/public%2Fdefault/ns/t") == 412
    for path in ("tenants/acme%2Fpubli", "namespaces/acme%2Fpubli", "namespaces/acme/publi%2Fc/retention"):
        answer = ask(door, "lead", "GET", f"/admin/v2/{path}")
        assert answer.status == 412
        assert "did you mean" not in answer.json["reason"]


def test_a_subscription_is_for_its_roles(door: Http) -> None:
    grant(door, NAMESPACE, "one", "consume")
    grant(door, NAMESPACE, "two", "consume")
    path = f"{NAMESPACE}/permissions/subscription"
    assert status(door, "lead", "POST", f"{path}/shut", ["one"]) == 204
    assert ask(door, "lead", "GET", path).json == {"shut": ["one"]}
    wait_until(lambda: status(door, "two", "PUT", f"{TOPIC}/subscription/shut") == 403)
    wait_until(lambda: status(door, "one", "PUT", f"{TOPIC}/subscription/shut") == 204)
    assert status(door, "two", "PUT", f"{TOPIC}/subscription/open") == 204
    wait_until(lambda: status(door, "two", "POST", f"{NAMESPACE}/clearBacklog") == 403)
    assert status(door, "lead", "DELETE", f"{NAMESPACE}/permissions/shut/one") == 204
    wait_until(lambda: status(door, "two", "POST", f"{TOPIC}/subscription/shut/skip_all") == 204)


def test_nodes_and_letters_to_elsewhere_are_for_superusers(door: Http) -> None:
    for method, path, body in (
        ("GET", "/admin/v2/ray/overview", None),
        ("GET", "/admin/v2/ray/nodes", None),
        ("PUT", "/admin/v2/ray/nodes/n/drain", None),
        ("DELETE", "/admin/v2/ray/stores/s", None),
        ("POST", f"{TOPIC}/move", {"node": "n"}),
        ("POST", f"{NAMESPACE}/abandonChangeLogs", None),
    ):
        assert status(door, "lead", method, path, body) == 403, path
        assert status(door, "boss", method, path, body) != 403, path
    client = Client._on(door.cluster)
    letters = "persistent://acme/ns/letters"
    client.subscribe(letters, "keeper", initial_position=InitialPosition.Earliest).close()
    client.create_producer(letters).send(b"x", properties={"REAL_TOPIC": "persistent://public/default/other"})
    redrive = "/admin/v2/persistent/acme/ns/letters/redrive"
    for body in ({}, {"to": "public/default/other"}, {"subscription": "keeper"}):
        answer = ask(door, "lead", "POST", redrive, body)
        assert answer.status == 403
        assert "public/default/other" in answer.json["reason"]
    assert ask(door, "lead", "POST", redrive, {"to": "acme/ns/t"}).json == {"persistent://acme/ns/t": 1}
    assert status(door, "stranger", "POST", redrive, {"dryRun": True}) == 403
    client.close()


def socket_status(door: Http, role: str, path: str) -> int:
    try:
        with connect(f"{door.url.replace('http', 'ws', 1)}/ws/v2/{path}token={token(role)}"):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def test_sockets_need_the_rights_of_what_they_do(door: Http) -> None:
    grant(door, TOPIC, "taker", "consume")
    consumer = "consumer/persistent/acme/ns/t/taken?"
    wait_until(lambda: socket_status(door, "taker", consumer) == 101)
    assert socket_status(door, "taker", "reader/persistent/acme/ns/t?") == 101
    assert socket_status(door, "taker", "producer/persistent/acme/ns/t?") == 403
    # Dead letters are published by the gateway, for whoever names a topic for them.
    for query in ("maxRedeliverCount=1&", "maxRedeliverCount=1&deadLetterTopic=public/default/else&"):
        assert socket_status(door, "taker", consumer + query) == 403
    assert socket_status(door, "taker", "reader/persistent/acme/ns/__change_events?") == 403


def test_a_granted_action_has_to_be_one(door: Http) -> None:
    for body, expected in ((["eat"], 412), ([], 400), ("produce", 400), ([5], 400), (None, 400)):
        assert status(door, "lead", "POST", f"{NAMESPACE}/permissions/x", body) == expected
    assert status(door, "boss", "POST", "/admin/v2/namespaces/no/where/permissions/x", ["produce"]) == 404


def test_refusals_before_anybody_is_asked_are_in_the_audit_log(
    door: Http, caplog: pytest.LogCaptureFixture
) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with caplog.at_level(logging.INFO, "pulsar_ray.audit"):
        assert door("GET", "/openapi.json", Origin="http://evil.example").status == 403
        assert door("GET", "/openapi.json", Host="evil.example").status == 403
        assert door("POST", "/ui/login", "user=boss&password=guess", **form).status == 401
        assert door("POST", "/ui/login", f"token={token('boss')}", **form).status == 303
    lines = [record.getMessage() for record in caplog.records if record.name == "pulsar_ray.audit"]
    assert lines == [
        "'' at 127.0.0.1: GET /openapi.json: 403",
        "'' at 127.0.0.1: GET /openapi.json: 403",
        "'' at 127.0.0.1: POST /ui/login: 401",
        "'boss' at 127.0.0.1: POST /ui/login: 303",
    ]


def test_every_administrative_call_is_in_the_audit_log(door: Http, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pulsar_ray.audit"):
        ask(door, "lead", "POST", f"{NAMESPACE}/permissions/noted", ["produce"])
        ask(door, "noted", "DELETE", TOPIC)
        door("GET", "/admin/v2/tenants?token=secret")
        socket_status(door, "boss", "producer/persistent/acme/ns/t?")
    lines = [record.getMessage() for record in caplog.records if record.name == "pulsar_ray.audit"]
    assert [line for line in lines if " at " in line] == [
        f"'lead' at 127.0.0.1: POST {NAMESPACE}/permissions/noted: 204",
        f"'noted' at 127.0.0.1: DELETE {TOPIC}: 403",
        "'' at 127.0.0.1: GET /admin/v2/tenants: 401",
        "'boss' at 127.0.0.1: GET /ws/v2/producer/persistent/acme/ns/t: 101",
    ]
    assert "'noted' may produce on acme/ns" in lines
    assert not any("token" in record.getMessage() for record in caplog.records)


def test_every_route_needs_a_right(tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = StubCluster(tmp_path_factory.mktemp("broker"))
    admin = Admin._on(cluster)
    try:
        gateway = Gateway(admin, LoopClient._on(cluster), Settings())
        application = gateway._application()
        routes = list(application.router.routes())
        assert len(routes) > 200
        assert [route for route in routes if route.handler not in gateway._doors.rights] == []
    finally:
        admin.close()
        cluster.close()


def test_permissions_are_administered_without_http(door: Http) -> None:
    admin = Admin._on(door.cluster)
    of = admin.namespaces.permissions
    of.grant("acme/ns", "a role, with a comma", ["consume"])
    of.grant("acme/ns", "a role, with a comma", ["produce"])
    assert of.list("acme/ns")["a role, with a comma"] == ["produce", "consume"]
    of.revoke("acme/ns", "a role, with a comma")
    of.revoke("acme/ns", "a role, with a comma")
    assert "a role, with a comma" not in of.list("acme/ns")
    of.grant_subscription("acme/ns", "s9", ["a, b"])
    assert of.subscriptions("acme/ns")["s9"] == ["a, b"]
    of.revoke_subscription("acme/ns", "s9", "a, b")
    assert "s9" not in of.subscriptions("acme/ns")
    with pytest.raises(TopicNotFound):
        of.list("no/where")
    with pytest.raises(InvalidConfiguration):
        admin.topics.permissions.grant("persistent://acme/ns/t", " ", ["produce"])
    # Policies beside them stay.
    admin.namespaces.policies.set("acme/ns", "message_ttl", 60)
    of.grant("acme/ns", "kept", ["produce"])
    assert admin.namespaces.policies.get("acme/ns", "message_ttl").value == {"message_ttl": 60}
    admin.namespaces.policies.remove("acme/ns", "message_ttl")
    assert of.list("acme/ns")["kept"] == ["produce"]
    admin.close()


def test_who_is_on_the_cluster_needs_no_permission(door: Http) -> None:
    client = Client._on(door.cluster)
    client.create_producer("persistent://acme/ns/t").send(b"x")
    client.close()


def test_authorization_without_authentication_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="set authentication_enabled"):
        Settings(authorization_enabled=True)
