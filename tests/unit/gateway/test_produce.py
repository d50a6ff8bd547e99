"""Publishing by one request."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_ray.asyncio.client import Client as LoopClient
from pulsar_ray.client.client import Client
from pulsar_ray.gateway import produce
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Http

EARLIEST = InitialPosition.Earliest


def test_messages_are_durable_when_their_ids_come_back(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    message = {"payload": "hé", "key": "k", "properties": {"a": "b"}, "eventTime": 5}
    answer = call.ok(
        "POST", f"/topics/persistent/public/default/{name}", {"messages": [message, {"payload": ""}]}
    )
    first, second = answer["messagePublishResults"]
    assert first["errorCode"] == second["errorCode"] == 0
    consumer = client.subscribe(name, "s", initial_position=EARLIEST)
    received = consumer.receive(20_000)
    assert (received.data().decode(), received.partition_key(), received.properties()) == (
        "hé",
        "k",
        {"a": "b"},
    )
    assert received.event_timestamp() == 5
    message_id = received.message_id()
    assert first["messageId"].startswith(f"{message_id.ledger_id()}:{message_id.entry_id()}:")
    assert consumer.receive(20_000).data() == b""


def test_a_message_waits_for_its_time(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    consumer = client.subscribe(name, "s", ConsumerType.Shared)
    path = f"/topics/persistent/public/default/{name}"
    late = {"payload": "late", "deliverAfterMs": 3_600_000}
    call.ok("POST", path, {"messages": [late, {"payload": "now", "deliverAfterMs": 0}]})
    assert consumer.receive(20_000).data() == b"now"
    row = call.ok("GET", f"/admin/v2/persistent/public/default/{name}/stats")["subscriptions"]["s"]
    assert row["msgBacklog"] == 2
    wait_until(lambda: _delayed(call, name) == 1)
    for wrong in (-1, "5", 10**30, 1.5):
        answer = call("POST", path, {"messages": [{"payload": "x", "deliverAfterMs": wrong}]})
        assert answer.status == 412, wrong


def _delayed(call: Http, name: str) -> int:
    stats = call.ok("GET", f"/admin/v2/persistent/public/default/{name}/stats")
    return int(stats["subscriptions"]["s"]["msgDelayed"])


def test_all_messages_of_large_requests_are_stored(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    path = f"/topics/persistent/public/default/{name}"
    body = {"messages": [{"payload": "x"}] * 5_000}
    with ThreadPoolExecutor() as threads:
        answers = [threads.submit(call.ok, "POST", path, body) for _ in range(3)]
    for answer in answers:
        results = answer.result()["messagePublishResults"]
        assert [each["errorCode"] for each in results] == [0] * 5_000


def test_deduplication_goes_by_the_name_of_the_caller(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    call.ok("POST", f"/admin/v2/persistent/public/default/{name}/deduplicationEnabled", True)
    consumer = client.subscribe(name, "s")
    path = f"/topics/persistent/public/default/{name}"
    first = {"payload": "first", "sequenceId": 1}
    for caller in ("one", "other", "one"):
        call.ok("POST", path, {"producerName": caller, "messages": [{**first, "key": caller}]})
    call.ok("POST", path, {"messages": [{"payload": "last"}]})
    received = [consumer.receive(20_000) for _ in range(3)]
    assert [(each.data(), each.partition_key()) for each in received] == [
        (b"first", "one"),
        (b"first", "other"),
        (b"last", ""),
    ]
    assert call("POST", path, {"producerName": 5, "messages": [first]}).status == 400


def test_callers_without_a_name_may_send_the_same_sequence_ids(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    call.ok("POST", f"/admin/v2/persistent/public/default/{name}/deduplicationEnabled", True)
    consumer = client.subscribe(name, "s")
    path = f"/topics/persistent/public/default/{name}"
    for payload in ("one", "other"):
        message = {"payload": payload, "sequenceId": 0}
        (result,) = call.ok("POST", path, {"messages": [message]})["messagePublishResults"]
        assert result["errorCode"] == 0
    assert [consumer.receive(20_000).data() for _ in range(2)] == [b"one", b"other"]


def test_a_body_as_java_writes_it_is_taken(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    consumer = client.subscribe(name, "s")
    unset = {"key": None, "replicationClusters": None, "context": None, "sequenceId": 0, "deliverAt": 0}
    message = {**unset, "payload": "x", "eventTime": "1603045262772", "properties": {"a": True, "b": 1.5}}
    body = {"schemaVersion": -1, "keySchema": None, "valueSchema": "", "producerName": None}
    call.ok("POST", f"/topics/persistent/public/default/{name}", {**body, "messages": [message]})
    received = consumer.receive(20_000)
    assert received.event_timestamp() == 1603045262772
    assert received.properties() == {"a": "true", "b": "1.5"}


def test_values_by_a_schema_are_refused_and_not_stored_without(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    for named in ({"schemaVersion": 0}, {"valueSchema": "{}"}, {"keySchema": "{}"}):
        body = {**named, "messages": [{"payload": "x"}]}
        answer = call("POST", f"/topics/persistent/public/default/{name}", body)
        assert answer.status == 501
        assert next(iter(named)) in answer.json["reason"]


def test_a_name_is_used_again_while_its_producer_closes(
    call: Http, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "KEPT_PRODUCERS", 0)
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    path = f"/topics/persistent/public/default/{name}"
    body = {"producerName": "n", "messages": [{"payload": "x"}]}
    with ThreadPoolExecutor(4) as threads:
        for answer in threads.map(lambda _: call.ok("POST", path, body), range(40)):
            assert answer["messagePublishResults"][0]["errorCode"] == 0


def test_nothing_is_stored_of_a_request_with_a_wrong_number(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    path = f"/topics/persistent/public/default/{name}"
    for wrong in ({"eventTime": -1}, {"sequenceId": -1}, {"deliverAt": 10**15}, {"key": "\ud800"}):
        body = {"producerName": "n", "messages": [{"payload": "x"}, {"payload": "x", **wrong}]}
        assert call("POST", path, body).status == 412, wrong
    assert call.ok("GET", f"/admin/v2/persistent/public/default/{name}/stats")["msgInCounter"] == 0


def test_a_producer_that_nobody_waited_for_keeps_no_topic(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")

    async def left() -> None:
        opened, may_open = asyncio.Event(), asyncio.Event()
        client = LoopClient._on(call.cluster)
        create = client.create_producer

        async def slowly(*arguments: Any, **named: Any) -> Any:
            opened.set()
            await may_open.wait()
            return await create(*arguments, **named)

        client.create_producer = slowly  # type: ignore[method-assign]
        producers = produce.SharedProducers(client)

        async def publish() -> None:
            async with producers.of(produce.Lent(name)):
                raise AssertionError

        request = asyncio.create_task(publish())
        await opened.wait()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        releasing = asyncio.create_task(producers.release(name))
        await asyncio.sleep(0)
        may_open.set()
        await releasing
        await asyncio.to_thread(call.ok, "DELETE", f"/admin/v2/persistent/public/default/{name}")
        await client.close()

    asyncio.run(left())


def test_a_partition_can_be_chosen(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 2)
    path = f"/topics/persistent/public/default/{name}/partitions/1"
    results = call.ok("POST", path, {"messages": [{"payload": "x"}]})["messagePublishResults"]
    assert results[0]["errorCode"] == 0
    reader = client.subscribe(f"{name}-partition-1", "s", initial_position=EARLIEST)
    assert reader.receive(20_000).data() == b"x"
    assert call("POST", f"{path[:-1]}2", {"messages": [{"payload": "x"}]}).status == 404


def test_a_topic_is_never_created_by_publishing(call: Http, name: str) -> None:
    answer = call("POST", f"/topics/persistent/public/default/{name}", {"messages": [{"payload": "x"}]})
    assert answer.status == 404
    assert call("GET", f"/admin/v2/persistent/public/default/{name}/partitions").status == 404


def test_a_topic_that_was_deleted_is_not_created_again_by_publishing(call: Http, name: str) -> None:
    path, publish = f"/admin/v2/persistent/public/default/{name}", f"/topics/persistent/public/default/{name}"
    call.ok("PUT", path)
    call.ok("POST", publish, {"messages": [{"payload": "x"}]})
    call.ok("DELETE", f"{path}?force=true")
    for _ in range(2):
        answer = call("POST", publish, {"messages": [{"payload": "x"}]})
        assert answer.status == 404 or answer.json["messagePublishResults"][0]["errorCode"]
    assert call("GET", f"{path}/partitions").status == 404
    call.ok("PUT", path)
    results = call.ok("POST", publish, {"messages": [{"payload": "x"}]})["messagePublishResults"]
    assert results[0]["errorCode"] == 0


def test_a_topic_can_be_deleted_after_publishing(call: Http, name: str) -> None:
    for path, publish in ((name, name), (f"{name}-p/partitions", f"{name}-p/partitions/1")):
        call.ok("PUT", f"/admin/v2/persistent/public/default/{path}", 2 if "p/" in path else None)
        published = {"messages": [{"payload": "x"}]}
        call.ok("POST", f"/topics/persistent/public/default/{publish}", published)
        call.ok("DELETE", f"/admin/v2/persistent/public/default/{path}")


def test_a_producer_that_nobody_uses_is_closed(
    call: Http, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"persistent/public/default/{name}"
    call.ok("PUT", f"/admin/v2/{path}")
    monkeypatch.setattr(produce, "IDLE_S", 0.05)
    call.ok("POST", f"/topics/{path}", {"messages": [{"payload": "x"}]})
    wait_until(lambda: call.ok("GET", f"/admin/v2/{path}/stats")["publishers"] == [])
    call.ok("POST", f"/topics/{path}", {"messages": [{"payload": "x"}]})
    assert call.ok("GET", f"/admin/v2/{path}/stats")["msgInCounter"] == 2


def test_each_message_that_fails_says_why(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    call.ok("POST", f"/admin/v2/persistent/public/default/{name}/terminate")
    path = f"/topics/persistent/public/default/{name}"
    answer = call("POST", path, {"messages": [{"payload": "x"}]})
    if answer.status == 200:
        result = answer.json["messagePublishResults"][0]
        assert result["errorCode"]
        assert "terminated" in result["errorMsg"].lower()
    else:
        assert answer.status >= 400
        assert "terminated" in answer.json["reason"].lower()


@pytest.mark.parametrize(
    "body",
    [
        {"messages": {}},
        {"messages": [{}]},
        {"messages": [{"payload": 5}]},
        {"messages": ["x"]},
        {"messages": [{"payload": "x", "key": 5}]},
        {"messages": [{"payload": "x", "properties": []}, {"payload": "x", "properties": [1]}]},
        {"messages": [{"payload": "x", "properties": {"a": None}}]},
        {"messages": [{"payload": "x", "properties": {"a": {"b": "c"}}}]},
        {"messages": [{"payload": "x", "eventTime": "noon"}]},
    ],
)
def test_what_is_no_message_is_refused_whole(call: Http, name: str, body: object) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    answer = call("POST", f"/topics/persistent/public/default/{name}", body)
    assert answer.status == 400
    assert answer.json["reason"]


def test_a_body_that_is_too_large_is_refused(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/persistent/public/default/{name}")
    body = {"messages": [{"payload": "x" * (7 << 20)}]}
    answer = call("POST", f"/topics/persistent/public/default/{name}", body)
    assert answer.status == 413
    assert "larger" in answer.json["reason"]


def test_more_topics_than_producers_are_kept(call: Http, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "KEPT_PRODUCERS", 1)
    for number in (0, 1, 2, 0):
        path = f"public/default/{name}-{number}"
        if call("GET", f"/admin/v2/persistent/{path}/partitions").status == 404:
            call.ok("PUT", f"/admin/v2/persistent/{path}")
        results = call.ok("POST", f"/topics/persistent/{path}", {"messages": [{"payload": "x"}]})
        assert results["messagePublishResults"][0]["errorCode"] == 0
    stats = call.ok("GET", f"/admin/v2/persistent/public/default/{name}-1/stats")
    assert stats["publishers"] == []
