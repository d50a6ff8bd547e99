"""The page: what it shows, what it asks before it does anything, and what it never lets through."""

from __future__ import annotations

import html
import re
from datetime import datetime, timezone
from urllib.parse import quote, urlencode

import pytest

from pulsar_ray.asyncio.reader import Reader
from pulsar_ray.client.client import Client
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Answer, Http

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
SCRIPT = "<img src=x onerror=alert(1)>"


def page_of(name: str, rest: str = "") -> str:
    return f"/ui/topics/persistent/public/default/{quote(name, safe='')}{rest}"


def text_of(answer: Answer) -> str:
    """What a reader of the page sees, without tags."""
    return html.unescape(re.sub(r"<[^>]*>", " ", answer.body.decode()))


def shown(call: Http, path: str) -> str:
    answer = call("GET", path)
    assert answer.status == 200, answer.body
    return text_of(answer)


def values(call: Http, path: str) -> list[str]:
    """The values that a page of messages shows, without their bytes."""
    answer = call("GET", path)
    assert answer.status == 200, answer.body
    return [
        html.unescape(each) for each in re.findall(r'h2>\n<pre tabindex="0">(.*)</pre>', answer.body.decode())
    ]


def confirmed(call: Http, path: str, **fields: str) -> Answer:
    """Send the form that a page showed, with its hidden mark."""
    form = call("GET", path)
    assert form.status == 200, form.body
    mark = re.search(rb'name="mark" value="([0-9a-f]+)"', form.body)
    assert mark is not None
    return call("POST", path, urlencode({"mark": mark[1].decode(), **fields}), **FORM)


@pytest.fixture
def topic(call: Http, client: Client, name: str) -> str:
    """A topic with four messages, which a subscription has not read."""
    client.subscribe(name, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest).close()
    producer = client.create_producer(name, batching_enabled=False)
    for number in range(4):
        producer.send(b"value-%d" % number, properties={"number": str(number)}, partition_key="key")
    producer.close()
    return name


def test_topics_are_found_by_a_part_of_their_names_and_sorted(call: Http, topic: str) -> None:
    assert topic in shown(call, f"/?q={topic}")
    assert "No topic has this in its name" in shown(call, "/?q=no-such-name")
    assert topic in shown(call, f"/ui/rows?q={topic}&sort=stored")
    wrong = call("GET", "/?sort=nothing")
    assert wrong.status == 400
    assert "give one of topic, in," in text_of(wrong)


def test_lists_of_very_many_topics_are_asked_for_less_often(
    call: Http, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert b"every 2s" in call("GET", "/ui/rows").body
    monkeypatch.setattr("pulsar_ray.gateway.page.page_routes.MANY_TOPICS", 0)
    assert b"every 10s" in call("GET", "/ui/rows").body


def test_a_topic_that_nobody_has_used_is_found_by_its_name(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    assert f"Not used yet: {name} " in re.sub(r"\s+", " ", shown(call, f"/?q={name}"))
    assert "Not used yet" not in shown(call, f"/?q={name}-and-no-more")


def test_a_topic_has_its_subscriptions_figures_settings_and_reasons(call: Http, topic: str) -> None:
    text = shown(call, page_of(topic))
    assert re.search(r"s\s+Shared\s+4\s", text), text
    assert "Delete the topic" in text
    assert f"{topic} on here" in re.sub(r"\s+", " ", text)
    wait_until(lambda: call.ok("GET", page_of(topic, "/figures"))["backlog"] == 4, what="the backlog")
    wait_until(
        lambda: 4 in call.ok("GET", page_of(topic, "/history"))["backlog"], what="a look at all topics"
    )
    assert "retention" in shown(call, page_of(topic, "/settings"))
    assert "sleeps" in shown(call, page_of(topic, "/subscription/s/why")) or "consumer" in shown(
        call, page_of(topic, "/subscription/s/why")
    )


def test_a_topic_with_partitions_leads_to_each(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 2)
    assert f"{name}-partition-1" in shown(call, page_of(name))
    assert f"{name}-partition-1" in shown(call, page_of(f"{name}-partition-1"))
    with client.create_producer(f"{name}-partition-1") as producer:
        producer.send(b"in the second")
    assert "in the second" in shown(call, page_of(name, "/messages?partition=1"))
    assert "in the second" not in shown(call, page_of(name, "/messages?partition=0"))
    assert call("GET", page_of(name, "/messages?partition=2")).status == 404


@pytest.mark.parametrize("path", [page_of("nowhere"), page_of("nowhere", "/messages"), "/ui/nothing"])
def test_what_is_not_there_is_a_page_too(call: Http, path: str) -> None:
    answer = call("GET", path)
    assert answer.status == 404
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "That was not done" in text_of(answer)


def test_messages_are_shown_by_place_and_time(call: Http, client: Client, topic: str) -> None:
    path = page_of(topic, "/messages")
    assert [
        number for number in range(4) if f"value-{number}" in shown(call, f"{path}?at=earliest&count=2")
    ] == [0, 1]
    assert [number for number in range(4) if f"value-{number}" in shown(call, f"{path}?count=2")] == [2, 3]
    reader = client.create_reader(topic, MessageId.earliest)
    messages = [reader.read_next(5000) for _ in range(4)]
    reader.close()
    third = messages[2].message_id()
    by_id = shown(call, f"{path}?at=id&id={third.ledger_id()}:{third.entry_id()}&count=1")
    assert "value-2" in by_id
    assert "number 2" in re.sub(r"\s+", " ", by_id)
    time = datetime.fromtimestamp(messages[3].publish_timestamp() / 1000, timezone.utc)
    assert "value-3" in shown(call, f"{path}?at=time&time={quote(time.isoformat())}")
    assert "There is none" in shown(call, f"{path}?at=time&time=2999-01-01")


def test_the_last_messages_are_those_that_were_there_when_somebody_looked(
    call: Http, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    read_next = Reader.read_next

    async def read_while_others_publish(reader: Reader, timeout_millis: int | None = None) -> Message:
        message = await read_next(reader, timeout_millis)
        producer.send_async(b"published meanwhile", None)
        producer.flush()
        return message

    monkeypatch.setattr(Reader, "read_next", read_while_others_publish)
    assert values(call, page_of(topic, "/messages?count=3")) == ["value-1", "value-2", "value-3"]
    producer.close()


@pytest.mark.parametrize(("at", "first"), [("earliest", 0), ("latest", 3)])
def test_a_page_of_large_messages_is_a_shorter_one(
    call: Http, topic: str, monkeypatch: pytest.MonkeyPatch, at: str, first: int
) -> None:
    monkeypatch.setattr("pulsar_ray.gateway.page.messages.MOST_BYTES", 1)
    assert values(call, page_of(topic, f"/messages?at={at}")) == [f"value-{first}"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("at=time&time=soon", "give it as 2026-01-31T12:00:00"),
        ("at=id&id=x:1", "give a whole number"),
        ("at=nowhere", "give earliest, latest, time or id"),
        ("count=many", "give a whole number"),
    ],
)
def test_a_wrong_place_is_named(call: Http, topic: str, query: str, reason: str) -> None:
    answer = call("GET", page_of(topic, f"/messages?{query}"))
    assert answer.status in (200, 400)
    assert reason in text_of(answer)


def test_large_keys_and_properties_are_cut(call: Http, client: Client, name: str) -> None:
    client.subscribe(name, "s").close()
    producer = client.create_producer(name)
    producer.send(b"x", partition_key="k" * 100_000, properties={"long": "v" * 100_000})
    producer.send(b"y", properties={f"n{number}": "v" * 1000 for number in range(100)})
    text = shown(call, page_of(name, "/messages?at=earliest"))
    assert len(text) < 50_000
    assert "k" * 2048 + "…" in text
    assert "v" * 2048 + "…" in text
    assert "84 more" in text


def test_looking_at_messages_moves_nothing(call: Http, client: Client, topic: str) -> None:
    shown(call, page_of(topic, "/messages?at=earliest"))
    stats = call.ok("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
    assert list(stats["subscriptions"]) == ["s"]
    assert stats["subscriptions"]["s"]["msgBacklog"] == 4


def test_values_are_decoded_bytes_are_hex_and_nothing_becomes_markup(
    call: Http, client: Client, name: str
) -> None:
    topic = f"{name} <b> {SCRIPT}"
    with client.create_producer(topic) as producer:
        producer.send(bytes(range(256)))
        producer.send(SCRIPT.encode(), properties={SCRIPT: SCRIPT}, partition_key=SCRIPT)
        producer.send(b"x" * 40_000)
    client.subscribe(topic, SCRIPT).close()
    for path in (
        "/",
        page_of(topic),
        page_of(topic, "/messages?at=earliest"),
        page_of(topic, "/actions/delete"),
    ):
        answer = call("GET", path)
        assert answer.status == 200
        assert SCRIPT.encode() not in answer.body
        assert b"<b>" not in answer.body
        assert "script-src" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
    text = shown(call, page_of(topic, "/messages?at=earliest"))
    assert "000000  00 01 02 03" in text
    assert SCRIPT in text
    assert "x…" in text


def test_a_form_names_what_is_lost_and_getting_it_does_nothing(call: Http, topic: str) -> None:
    text = shown(call, page_of(topic, "/actions/delete"))
    assert "for 1 subscriptions. All messages and all subscriptions are lost" in text
    assert "4 entries wait" in shown(call, page_of(topic, "/subscription/s/skip"))
    assert topic in shown(call, f"/?q={topic}")


def test_forms_do_what_they_say(call: Http, topic: str) -> None:
    def backlog() -> int:
        stats = call.ok("GET", f"/admin/v2/persistent/public/default/{topic}/stats")
        return int(stats["subscriptions"]["s"]["msgBacklog"])

    skip, policy = page_of(topic, "/subscription/s/skip"), page_of(topic, "/actions/policy")
    assert "1 entries were skipped" in text_of(confirmed(call, skip, count="1"))
    assert backlog() == 3
    assert confirmed(call, skip).status == 200
    assert backlog() == 0
    assert confirmed(call, page_of(topic, "/subscription/s/seek"), to="earliest").status == 200
    assert backlog() == 4
    assert "is set" in text_of(confirmed(call, policy, policy="max_consumers", values="7"))
    assert re.search(r"max_consumers\s+7\s+topic", shown(call, page_of(topic, "/settings")))
    assert "is removed" in text_of(confirmed(call, policy, policy="max_consumers"))
    assert confirmed(call, page_of(topic, "/actions/truncate")).status == 200
    assert backlog() == 0
    assert confirmed(call, page_of(topic, "/subscription/s/unsubscribe")).status == 200
    assert "nobody waits for what is published here" in shown(call, page_of(topic))
    assert confirmed(call, page_of(topic, "/actions/delete")).status == 200
    assert call("GET", page_of(topic)).status == 404


@pytest.mark.parametrize(
    ("path", "fields", "status", "reason"),
    [
        ("/actions/policy", {"policy": "no_such"}, 412, "no_such"),
        ("/actions/policy", {"policy": "max_consumers", "values": "many"}, 412, "many"),
        ("/actions/policy", {}, 400, "policy is empty"),
        ("/subscription/s/seek", {"to": "soon"}, 400, "is no time"),
        ("/subscription/s/skip", {"count": "-1"}, 400, "count=-1"),
    ],
)
def test_a_wrong_form_comes_back_with_the_reason(
    call: Http, topic: str, path: str, fields: dict[str, str], status: int, reason: str
) -> None:
    answer = confirmed(call, page_of(topic, path), **fields)
    assert answer.status == status
    assert reason in text_of(answer)
    for value in fields.values():
        assert f'value="{value}"'.encode() in answer.body


def test_a_subscription_in_use_is_deleted_only_by_force(call: Http, client: Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    path = page_of(topic, "/subscription/s/unsubscribe")
    assert confirmed(call, path).status == 409
    assert confirmed(call, path, force="yes").status == 200
    assert call.ok("GET", f"/admin/v2/persistent/public/default/{topic}/subscriptions") == []
    assert consumer.subscription_name() == "s"


def test_dead_letters_are_listed_and_sent_back(call: Http, client: Client, name: str) -> None:
    letters = f"{name}-s-DLQ"
    client.subscribe(letters, "keeper", initial_position=InitialPosition.Earliest).close()
    client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()
    with client.create_producer(letters) as producer:
        producer.send(b"dead")
    assert letters in shown(call, "/ui/letters")
    answer = confirmed(call, page_of(letters, "/actions/redrive"), to=name)
    assert "1 to persistent" in text_of(answer)
    assert "dead" in shown(call, page_of(name, "/messages?at=earliest"))


def test_a_topic_that_rest_published_to_is_deleted(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    call.ok("POST", f"/topics/persistent/public/default/{name}", {"messages": [{"payload": "x"}]})
    assert "is deleted" in text_of(confirmed(call, page_of(name, "/actions/delete")))


def test_nodes_have_their_room_and_health(call: Http) -> None:
    text = shown(call, "/ui/nodes")
    assert "serving" in text
    assert "All is well" in text or "error:" in text or "warning:" in text


@pytest.mark.parametrize("mark", ["", "0" * 64, "é"])
def test_a_form_of_another_site_does_nothing(call: Http, topic: str, mark: str) -> None:
    answer = call("POST", page_of(topic, "/actions/delete"), urlencode({"mark": mark}), **FORM)
    assert answer.status == 403
    assert "load it again" in text_of(answer)
    for charset in ("nonsense", "utf-16"):
        kind = {"Content-Type": f"{FORM['Content-Type']}; charset={charset}"}
        assert call("POST", page_of(topic, "/actions/delete"), "mark=", **kind).status == 415
    elsewhere = call("POST", page_of(topic, "/actions/delete"), "mark=", Origin="http://evil.example", **FORM)
    assert elsewhere.status == 403
    assert call("POST", page_of(topic, "/actions/delete"), b"{}").status == 415
    assert call("GET", page_of(topic)).status == 200


@pytest.mark.parametrize("path", ["/actions/explode", "/subscription/s/explode", "/subscription/none/skip"])
def test_an_action_that_there_is_not_is_refused(call: Http, topic: str, path: str) -> None:
    assert call("GET", page_of(topic, path)).status == 404


def test_files_of_the_page_are_its_own(call: Http) -> None:
    script = call("GET", "/ui/static/htmx.min.js")
    assert script.status == 200
    assert "javascript" in script.headers["Content-Type"]
    assert call("GET", "/ui/static/..%2Frendering.py").status == 404
    assert call("GET", "/ui/static/page.html").status == 404
    body = call("GET", "/").body.decode()
    for file in re.findall(r'(?:src|href)="(/ui/static/[^"?]+)', body):
        assert call("GET", file).status == 200


def test_a_non_persistent_topic_says_that_it_stores_nothing(call: Http, client: Client, name: str) -> None:
    topic = f"non-persistent://public/default/{name}"
    client.create_producer(topic)
    path = f"/ui/topics/non-persistent/public/default/{name}"
    assert name in shown(call, path)
    assert "stores no messages" in shown(call, f"{path}/messages")
