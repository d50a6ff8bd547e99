"""The WebSocket API, used through a client that is not ours."""

from __future__ import annotations

import base64
import json
import socket
import struct
from contextlib import AbstractContextManager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pulsar_ray.client.client import Client
from pulsar_ray.errors import Timeout
from pulsar_ray.gateway import websocket
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Http, unread

WAIT_S = 30


def opened(call: Http, path: str) -> AbstractContextManager[ClientConnection]:
    return connect(f"ws://{call.address}/ws/v2/{path}", open_timeout=WAIT_S)


def ask(socket: ClientConnection, frame: Any) -> Any:
    socket.send(frame if isinstance(frame, str) else json.dumps(frame))
    return json.loads(socket.recv(WAIT_S))


def payload(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_a_producer_publishes_and_tells_ids(call: Http, client: Client, name: str) -> None:
    consumer = client.subscribe(name, "s")
    with opened(call, f"producer/persistent/public/default/{name}") as socket:
        frame = {
            "payload": payload(b"hi"),
            "properties": {"a": "b"},
            "key": "k",
            "context": "1",
            "eventTime": "2020-01-01T00:00:00Z",
        }
        answer = ask(socket, frame)
    assert (answer["result"], answer["context"], answer["errorCode"]) == ("ok", "1", 0)
    message = consumer.receive(20_000)
    assert (message.data(), message.properties(), message.partition_key()) == (b"hi", {"a": "b"}, "k")
    assert message.event_timestamp() == 1577836800000
    assert answer["messageId"] == payload(message.message_id().serialize())


@pytest.mark.parametrize(
    ("frame", "result"),
    [
        ("nonsense", "send-error:3"),
        ("[1]", "send-error:3"),
        ({}, "send-error:7"),
        ({"payload": "%%%"}, "send-error:7"),
        ({"payload": 5}, "send-error:7"),
        ({"payload": "", "properties": [1]}, "send-error:7"),
        ({"payload": "", "properties": {"a": 1}}, "send-error:7"),
        ({"payload": "", "eventTime": 5}, "send-error:7"),
        ({"payload": "", "key": 5}, "send-error:7"),
        ({"payload": "", "deliverAt": "noon"}, "send-error:7"),
    ],
)
def test_a_frame_that_is_no_message_is_answered_and_the_socket_stays(
    call: Http, name: str, frame: Any, result: str
) -> None:
    with opened(call, f"producer/persistent/public/default/{name}") as socket:
        answer = ask(socket, frame)
        assert answer["result"] == result
        assert answer["errorMsg"]
        assert ask(socket, {"payload": payload(b"x")})["result"] == "ok"


def test_a_consumer_gets_acknowledges_and_gets_the_rest_later(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name, batching_enabled=False)
    path = f"consumer/persistent/public/default/{name}/s?subscriptionType=Shared"
    with opened(call, path) as socket:
        for number in range(3):
            producer.send(b"%d" % number, properties={"n": str(number)})
        got = [json.loads(socket.recv(WAIT_S)) for _ in range(3)]
        assert [base64.b64decode(each["payload"]) for each in got] == [b"0", b"1", b"2"]
        assert got[0]["properties"] == {"n": "0"}
        assert got[0]["redeliveryCount"] == 0
        assert "key" not in got[0]
        assert "eventTime" not in got[0]
        assert got[0]["publishTime"].endswith("Z")
        for each, kind in zip(got[:2], ({}, {"type": None}), strict=True):
            socket.send(json.dumps({**kind, "messageId": each["messageId"]}))
        assert ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": False}
    with opened(call, path) as socket:
        again = json.loads(socket.recv(WAIT_S))
        assert base64.b64decode(again["payload"]) == b"2"


def test_a_negative_acknowledgment_brings_a_message_again(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name)
    query = "subscriptionType=Shared&negativeAckRedeliveryDelay=100"
    with opened(call, f"consumer/persistent/public/default/{name}/s?{query}") as socket:
        producer.send(b"x")
        first = json.loads(socket.recv(WAIT_S))
        socket.send(json.dumps({"type": "negativeAcknowledge", "messageId": first["messageId"]}))
        assert json.loads(socket.recv(WAIT_S))["redeliveryCount"] == 1


def test_a_message_waits_for_its_time(call: Http, client: Client, name: str) -> None:
    consumer = client.subscribe(name, "s", ConsumerType.Shared)
    with opened(call, f"producer/persistent/public/default/{name}") as socket:
        assert ask(socket, {"payload": payload(b"late"), "deliverAfterMs": 3_600_000})["result"] == "ok"
        assert ask(socket, {"payload": payload(b"now")})["result"] == "ok"
        for wrong in (-1, "5", 10**30):
            answer = ask(socket, {"payload": payload(b"x"), "deliverAfterMs": wrong})
            assert answer["result"] == "send-error:7"
    assert consumer.receive(20_000).data() == b"now"
    with pytest.raises(Timeout):
        consumer.receive(100)


@pytest.mark.parametrize(
    ("event_ms", "text"),
    [
        (253402300799999, "9999-12-31T23:59:59.999Z"),
        (253402300800000, "+10000-01-01T00:00:00.000Z"),
        # Somebody's nanoseconds.
        (1_600_000_000_123_456_789, "+50703951-08-13T22:44:16.789Z"),
    ],
)
def test_an_event_time_far_away_stands_in_no_way(
    call: Http, client: Client, name: str, event_ms: int, text: str
) -> None:
    client.subscribe(name, "s").close()
    client.create_producer(name).send(b"x", event_timestamp=event_ms)
    with opened(call, f"consumer/persistent/public/default/{name}/s") as socket:
        assert json.loads(socket.recv(WAIT_S))["eventTime"] == text
    peeked = call("GET", f"/admin/v2/persistent/public/default/{name}/subscription/s/position/1")
    assert peeked.headers["X-Pulsar-event-time"] == text
    page = call("GET", f"/ui/topics/persistent/public/default/{name}/messages?at=earliest").body.decode()
    assert text.rstrip("Z").replace("T", " ") in page


def test_a_subscription_that_is_not_durable_ends_with_its_socket(
    call: Http, client: Client, name: str
) -> None:
    client.create_producer(name).close()
    query = "subscriptionMode=NonDurable&priorityLevel=3"
    with opened(call, f"consumer/persistent/public/default/{name}/gone?{query}"):
        stats = call.ok("GET", f"/admin/v2/persistent/public/default/{name}/stats")
        assert stats["subscriptions"]["gone"]["isDurable"] is False
    path = f"/admin/v2/persistent/public/default/{name}/subscriptions"
    wait_until(lambda: call.ok("GET", path) == [])


def test_no_more_than_the_queue_are_unacknowledged(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name, batching_enabled=False)
    path = f"consumer/persistent/public/default/{name}/s?receiverQueueSize=2"
    with opened(call, path) as socket:
        for number in range(4):
            producer.send(b"%d" % number)
        got = [json.loads(socket.recv(WAIT_S)) for _ in range(2)]
        assert ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": False}
        socket.send(json.dumps({"messageId": got[0]["messageId"]}))
        assert base64.b64decode(json.loads(socket.recv(WAIT_S))["payload"]) == b"2"


def test_a_queue_of_none_lets_one_message_come(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name, batching_enabled=False)
    with opened(call, f"consumer/persistent/public/default/{name}/s?receiverQueueSize=0") as socket:
        producer.send(b"0")
        producer.send(b"1")
        first = json.loads(socket.recv(WAIT_S))
        assert ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": False}
        second = ask(socket, {"messageId": first["messageId"]})
        assert base64.b64decode(second["payload"]) == b"1"


def test_a_queue_is_as_large_as_the_gateway_can_hold(call: Http, client: Client, name: str) -> None:
    client.subscribe(name, "s").close()
    client.create_producer(name).send_many([b"x"] * 1001)
    with opened(call, f"consumer/persistent/public/default/{name}/s?receiverQueueSize=1000000") as socket:
        for _ in range(1000):
            assert "payload" in json.loads(socket.recv(WAIT_S))
        assert ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": False}


def test_a_producer_that_takes_no_answers_is_cut_off(
    call: Http, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "TAKEN_S", 0.5)
    # Each is answered with its context.
    text = json.dumps({"context": "x" * 60_000}).encode()
    frame = b"\x81\xfe" + struct.pack(">H", len(text)) + bytes(4) + text

    def publish_on(one: socket.socket) -> None:
        while True:
            one.sendall(frame)

    with unread(call.address, f"producer/persistent/public/default/{name}") as silent:
        with pytest.raises(ConnectionError):
            publish_on(silent)
        path = f"/admin/v2/persistent/public/default/{name}/stats"
        wait_until(lambda: call.ok("GET", path)["publishers"] == [])


def test_a_consumer_that_pulls_gets_what_it_asks_for(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name, batching_enabled=False)
    with opened(call, f"consumer/persistent/public/default/{name}/s?pullMode=true") as socket:
        for number in range(3):
            producer.send(b"%d" % number)
        assert ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": False}
        assert "payload" in ask(socket, {"type": "permit", "permitMessages": 1})
        assert ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": False}


def test_the_end_of_a_topic_is_told(call: Http, client: Client, name: str) -> None:
    client.create_producer(name).send(b"x")
    path = f"consumer/persistent/public/default/{name}/s?subscriptionInitialPosition=Earliest"
    with opened(call, path) as socket:
        socket.recv(WAIT_S)
        call.ok("POST", f"/admin/v2/persistent/public/default/{name}/terminate")
        wait_until(lambda: ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": True})


def test_a_topic_without_storage_has_no_end(call: Http, client: Client, name: str) -> None:
    with opened(call, f"consumer/non-persistent/public/default/{name}/s") as socket:
        assert ask(socket, {"type": "isEndOfTopic"}) == {"endOfTopic": False}


def test_a_reader_reads_from_the_beginning_and_from_an_id(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name, batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(3)]
    path = f"reader/persistent/public/default/{name}"
    with opened(call, f"{path}?messageId=earliest") as socket:
        assert [base64.b64decode(json.loads(socket.recv(WAIT_S))["payload"]) for _ in ids] == [
            b"0",
            b"1",
            b"2",
        ]
    behind = payload(ids[0].serialize()).replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    with opened(call, f"{path}?messageId={behind}") as socket:
        assert base64.b64decode(json.loads(socket.recv(WAIT_S))["payload"]) == b"1"


def test_unsubscribing_deletes_the_subscription(call: Http, client: Client, name: str) -> None:
    client.create_producer(name)
    with opened(call, f"consumer/persistent/public/default/{name}/s") as socket:
        socket.send(json.dumps({"type": "unsubscribe"}))
        with pytest.raises(ConnectionClosed):
            socket.recv(WAIT_S)
    assert call.ok("GET", f"/admin/v2/persistent/public/default/{name}/subscriptions") == []


@pytest.mark.parametrize(
    "frame", ["{", "[]", {"type": "dance"}, {"messageId": "%"}, {"type": "permit", "permitMessages": "x"}]
)
def test_a_consumer_that_says_nonsense_is_told_and_goes_on(
    call: Http, client: Client, name: str, frame: Any
) -> None:
    producer = client.create_producer(name)
    with opened(call, f"consumer/persistent/public/default/{name}/s") as socket:
        assert ask(socket, frame)["errorMsg"]
        producer.send(b"x")
        assert base64.b64decode(json.loads(socket.recv(WAIT_S))["payload"]) == b"x"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("subscriptionType=Both", 400),
        ("receiverQueueSize=many", 400),
        ("pullMode=perhaps", 400),
        ("deadLetterTopic=d", 400),
        ("colour=red", 400),
        ("receiverQueueSize=-5", 412),
    ],
)
def test_a_wrong_option_is_refused_at_the_handshake(call: Http, name: str, query: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        opened(call, f"consumer/persistent/public/default/{name}/s?{query}").__enter__()
    assert refused.value.response.status_code in (400, status)
    assert json.loads(refused.value.response.body or b"{}")["reason"]


def test_a_request_that_is_no_handshake_makes_nothing(call: Http, name: str) -> None:
    path = f"persistent/public/default/{name}"
    for kind in ("producer", "consumer", "reader"):
        answer = call("GET", f"/ws/v2/{kind}/{path}{'/s' * (kind == 'consumer')}")
        assert answer.status == 400
        assert "no handshake" in answer.json["reason"]
    assert call("GET", f"/admin/v2/{path}/partitions").status == 404


def test_a_second_exclusive_consumer_is_refused_at_the_handshake(
    call: Http, client: Client, name: str
) -> None:
    path = f"consumer/persistent/public/default/{name}/s"
    with client.subscribe(name, "s"), pytest.raises(InvalidStatus) as refused:
        opened(call, path).__enter__()
    assert refused.value.response.status_code == 409


def test_a_slow_reader_holds_up_itself_alone(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name, batching_enabled=False)
    path = f"consumer/persistent/public/default/{name}"
    with opened(call, f"{path}/slow"), opened(call, f"{path}/quick") as quick:
        for number in range(50):
            producer.send(b"%03d" % number + b"x" * 50_000)
        got = [base64.b64decode(json.loads(quick.recv(WAIT_S))["payload"])[:3] for _ in range(50)]
    assert got == [b"%03d" % number for number in range(50)]
