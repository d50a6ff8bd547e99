"""Who sees what on the page, and how a browser says who it is."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.model.enums import InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.security.keys import new_secret
from pulsar_ray.security.tokens import create_token
from tests.unit.gateway.conftest import Answer, Http, serving

KEY = new_secret("HS256")
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TOPIC = "/ui/topics/persistent/acme/ns/t"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with serving(
        tmp_path_factory.mktemp("broker"),
        authentication_enabled=True,
        token_secret_key=f"data:;base64,{base64.b64encode(KEY).decode()}",
        authorization_enabled=True,
        super_user_roles="boss",
    ) as http:
        for path, body in (
            ("/admin/v2/tenants/acme", {"adminRoles": ["lead"]}),
            ("/admin/v2/namespaces/acme/ns", None),
            ("/admin/v2/persistent/acme/ns/t", None),
            ("/admin/v2/persistent/acme/ns/t/subscription/s", None),
            ("/admin/v2/persistent/public/default/other", None),
            ("/admin/v2/persistent/public/default/other/subscription/s", None),
        ):
            assert http("PUT", path, body, Authorization=f"Bearer {token('boss')}").status == 204
        path = "/admin/v2/namespaces/acme/ns/permissions/"
        for role, action in (("reader", "consume"), ("writer", "produce")):
            answer = http("POST", f"{path}{role}", [action], Authorization=f"Bearer {token('boss')}")
            assert answer.status == 204
        yield http


def token(role: str) -> str:
    return create_token(KEY, "HS256", role)


def enter(door: Http, role: str) -> str:
    """Send the form of the login as a browser does, and return the cookie that it keeps."""
    answer = door("POST", "/ui/login", urlencode({"token": token(role), "back": "/"}), **FORM)
    assert answer.status == 303
    return answer.headers["Set-Cookie"].split(";")[0]


def get(door: Http, role: str, path: str) -> Answer:
    return door("GET", path, Cookie=enter(door, role))


def post(door: Http, role: str, path: str, **fields: str) -> Answer:
    """Send a form with the mark that this role's pages have."""
    cookie = enter(door, role)
    mark = re.search(rb'name="mark" value="([0-9a-f]+)"', door("GET", "/", Cookie=cookie).body)
    assert mark is not None
    body = urlencode({"mark": mark[1].decode(), **fields})
    return door("POST", path, body, Cookie=cookie, **FORM)


def test_a_stranger_is_asked_who_they_are_and_comes_back(door: Http) -> None:
    answer = door("GET", TOPIC)
    assert answer.status == 303
    assert answer.headers["Location"] == f"/ui/login?back={TOPIC}"
    form = door("GET", answer.headers["Location"])
    assert form.status == 200
    assert f'name="back" value="{TOPIC}"'.encode() in form.body
    entered = door("POST", "/ui/login", urlencode({"token": token("boss"), "back": TOPIC}), **FORM)
    assert (entered.status, entered.headers["Location"]) == (303, TOPIC)
    kept = entered.headers["Set-Cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Strict" in kept
    assert door("GET", TOPIC, Cookie=kept.split(";")[0]).status == 200


def test_a_stranger_comes_back_to_what_was_asked_for(door: Http) -> None:
    for path in ("/ui/topics/persistent/acme/ns/a%2Fb%0Ac", "/?q=ns&sort=topic"):
        form = door("GET", door("GET", path).headers["Location"])
        assert f'name="back" value="{path.replace("&", "&amp;")}"'.encode() in form.body


def test_letters_go_where_the_role_may_publish(door: Http) -> None:
    client = Client._on(door.cluster)
    letters, mine, other = "persistent://acme/ns/l-DLQ", "persistent://acme/ns/t", "public/default/other"
    client.subscribe(letters, "keeper", initial_position=InitialPosition.Earliest).close()
    producer = client.create_producer(letters)
    names_other = {"REAL_TOPIC": f"persistent://{other}"}
    redrive = "/ui/topics/persistent/acme/ns/l-DLQ/actions/redrive"

    def confirmed(role: str, to: str = "") -> Answer:
        cookie = enter(door, role)
        found = re.search(rb'name="mark" value="(\w+)"', door("GET", redrive, Cookie=cookie).body)
        assert found is not None
        fields = urlencode({"mark": found[1].decode(), "to": to})
        return door("POST", redrive, fields, Cookie=cookie, **FORM)

    producer.send(b"theirs", properties=names_other)
    for answer in (confirmed("lead"), confirmed("lead", other)):
        assert answer.status == 403
        assert b"public/default/other" in answer.body
    assert confirmed("lead", mine).status == 200
    producer.send(b"mine", properties={"REAL_TOPIC": mine})
    assert confirmed("lead").status == 200
    producer.send(b"theirs", properties=names_other)
    producer.send(b"mine", properties={"REAL_TOPIC": mine})
    answer = confirmed("lead")
    assert answer.status == 403
    assert b"the letters name 2 topics" in answer.body
    assert confirmed("boss").status == 200
    reader = client.create_reader(f"persistent://{other}", MessageId.earliest)
    assert [reader.read_next(5000).data() for _ in range(1)] == [b"theirs"]
    assert not reader.has_message_available()
    client.close()


def test_styles_and_scripts_are_for_everybody(door: Http) -> None:
    assert door("GET", "/ui/static/page.css").status == 200


@pytest.mark.parametrize(
    "back",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "",
        "/\t/evil.example",
        "/\n/evil.example",
        "/\r/evil.example",
    ],
)
def test_a_login_leads_to_no_other_site(door: Http, back: str) -> None:
    answer = door("POST", "/ui/login", urlencode({"token": token("boss"), "back": back}), **FORM)
    assert answer.headers["Location"] == "/"


@pytest.mark.parametrize(
    "fields", [{"token": "wrong"}, {"token": create_token(new_secret("HS256"), "HS256", "boss")}, {}]
)
def test_wrong_credentials_are_not_kept(door: Http, fields: dict[str, str]) -> None:
    answer = door("POST", "/ui/login", urlencode(fields), **FORM)
    assert answer.status == 401
    assert b'role="alert"' in answer.body
    assert "Set-Cookie" not in answer.headers


def test_a_cookie_opens_pages_alone(door: Http) -> None:
    cookie = enter(door, "boss")
    assert door("GET", "/admin/v2/tenants", Cookie=cookie).status == 401
    assert door("GET", "/", Cookie=cookie).status == 200
    assert door("GET", "/", Cookie="pulsar_ray=nonsense").status == 303
    assert door("GET", "/ui/rows", Cookie="pulsar_ray=nonsense", **{"HX-Request": "true"}).status == 401


def test_a_role_sees_its_topics_alone(door: Http) -> None:
    mine = get(door, "reader", "/").body
    assert b"acme/ns/t" in mine
    assert b"other" not in mine
    assert b"which you may not look at" in mine
    assert b"other" in get(door, "boss", "/").body
    assert b"acme/ns/t" not in get(door, "nobody", "/").body
    assert b"Not used yet" not in get(door, "nobody", "/?q=acme/ns/t").body


@pytest.mark.parametrize(
    ("role", "path", "status"),
    [
        ("reader", TOPIC, 200),
        ("writer", TOPIC, 200),
        ("nobody", TOPIC, 403),
        ("reader", f"{TOPIC}/messages", 200),
        ("writer", f"{TOPIC}/messages", 403),
        ("reader", f"{TOPIC}/subscription/s/skip", 200),
        ("writer", f"{TOPIC}/subscription/s/skip", 403),
        ("reader", f"{TOPIC}/actions/delete", 403),
        ("lead", f"{TOPIC}/actions/delete", 200),
        ("lead", "/ui/nodes", 403),
        ("boss", "/ui/nodes", 200),
        ("nobody", "/ui/topics/persistent/public/default/other", 403),
    ],
)
def test_a_role_may_what_it_may_by_rest(door: Http, role: str, path: str, status: int) -> None:
    assert get(door, role, path).status == status


def test_a_change_needs_the_right_and_is_in_the_audit_log(
    door: Http, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "pulsar_ray.audit"):
        assert post(door, "reader", f"{TOPIC}/actions/truncate").status == 403
        assert post(door, "lead", f"{TOPIC}/actions/truncate").status == 200
    lines = [record.getMessage() for record in caplog.records if "truncate" in record.getMessage()]
    assert [line.split()[0].strip("'") for line in lines] == ["reader", "lead"]
    assert lines[0].endswith("403")
    assert token("lead") not in caplog.text


def test_a_form_of_one_role_is_none_of_another(door: Http) -> None:
    mark = re.search(rb'name="mark" value="([0-9a-f]+)"', get(door, "lead", "/").body)
    assert mark is not None
    body = urlencode({"mark": mark[1].decode()})
    cookie = enter(door, "boss")
    assert door("POST", f"{TOPIC}/actions/truncate", body, Cookie=cookie, **FORM).status == 403


def test_leaving_forgets_the_cookie(door: Http) -> None:
    answer = post(door, "reader", "/ui/leave")
    assert answer.status == 303
    assert 'pulsar_ray=""' in answer.headers["Set-Cookie"]
