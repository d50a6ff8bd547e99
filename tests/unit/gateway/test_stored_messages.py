"""Messages by their place, id and time, which leave no subscription behind."""

from __future__ import annotations

import time
from functools import partial

import pytest

from pulsar_ray.client.client import Client
from pulsar_ray.model.enums import InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Http

PERSISTENT = "/admin/v2/persistent/public/default"


def is_behind(time_ms: int) -> bool:
    return time.time_ns() // 1_000_000 > time_ms


@pytest.fixture
def ids(call: Http, client: Client, name: str) -> list[MessageId]:
    """Five messages in two ledgers, each published at another time."""
    sent = []
    with client.create_producer(name, batching_enabled=False) as producer:
        for number in range(5):
            if number == 3:
                call.ok("PUT", f"{PERSISTENT}/{name}/unload")
            wait_until(partial(is_behind, time.time_ns() // 1_000_000))
            sent.append(producer.send(b"m%d" % number, properties={"n": str(number)}))
    assert len({each.ledger_id() for each in sent}) == 2
    return sent


def test_a_message_is_examined_from_either_end(call: Http, name: str, ids: list[MessageId]) -> None:
    path = f"{PERSISTENT}/{name}/examinemessage"
    for query, wanted in (
        ("", b"m4"),
        ("?initialPosition=latest&messagePosition=3", b"m2"),
        ("?initialPosition=earliest", b"m0"),
        ("?initialPosition=earliest&messagePosition=4", b"m3"),
    ):
        answer = call("GET", path + query)
        assert (answer.status, answer.body) == (200, wanted), query
    assert answer.headers["X-Pulsar-Message-ID"] == f"{ids[3].ledger_id()}:{ids[3].entry_id()}"
    assert answer.headers["X-Pulsar-PROPERTY"] == '{"n": "3"}'
    for end in ("earliest", "latest"):
        assert call("GET", f"{path}?initialPosition={end}&messagePosition=6").status == 404
    for wrong in ("initialPosition=middle", "messagePosition=0", "messagePosition=x"):
        assert call("GET", f"{path}?{wrong}").status == 400
    assert call.ok("GET", f"{PERSISTENT}/{name}/subscriptions") == []


def test_a_message_is_found_by_its_id(call: Http, client: Client, name: str, ids: list[MessageId]) -> None:
    path = f"{PERSISTENT}/{name}/ledger"
    answer = call("GET", f"{path}/{ids[1].ledger_id()}/entry/{ids[1].entry_id()}")
    assert (answer.status, answer.body) == (200, b"m1")
    assert answer.headers["X-Pulsar-publish-time"].endswith("Z")
    for ledger, entry in ((ids[4].ledger_id(), 99), (ids[0].ledger_id(), 99), (10**15, 0)):
        missing = call("GET", f"{path}/{ledger}/entry/{entry}")
        assert missing.status == 404, (ledger, entry)
        assert missing.json["reason"]
    assert call("GET", f"{path}/x/entry/0").status == 400
    gone = call("GET", f"{PERSISTENT}/{name}-gone/ledger/0/entry/0")
    assert gone.status == 404
    assert f"persistent://public/default/{name}-gone" not in call.ok("GET", PERSISTENT)
    call.ok("PUT", f"{PERSISTENT}/{name}-p/partitions", 2)
    assert call("GET", f"{PERSISTENT}/{name}-p/ledger/0/entry/0").status == 405
    assert call("GET", f"{PERSISTENT}/{name}-p-partition-7/ledger/0/entry/0").status == 404
    assert call("GET", f"/admin/v2/non-persistent/public/default/{name}/examinemessage").status == 405


def test_an_id_is_found_by_its_time(call: Http, client: Client, name: str, ids: list[MessageId]) -> None:
    path = f"{PERSISTENT}/{name}/messageid"
    with client.create_reader(name, MessageId.earliest) as reader:
        times = [reader.read_next(5000).publish_timestamp() for _ in ids]
    for time_ms, wanted in zip(times, ids, strict=True):
        found = call.ok("GET", f"{path}/{time_ms}")
        assert (found["ledgerId"], found["entryId"]) == (wanted.ledger_id(), wanted.entry_id())
    assert call.ok("GET", f"{path}/0") == call.ok("GET", f"{path}/{times[0]}")
    behind = call.ok("GET", f"{path}/{times[-1] + 1}")
    assert (behind["ledgerId"], behind["entryId"]) == (ids[-1].ledger_id(), ids[-1].entry_id() + 1)
    assert call("GET", f"{path}/soon").status == 400


def test_the_id_of_an_empty_topic_is_its_beginning(call: Http, name: str) -> None:
    path = f"{PERSISTENT}/{name}-empty"
    call.ok("PUT", path)
    call.ok("PUT", f"{path}/subscription/s")
    beginning = call.ok("GET", f"{path}/messageid/{int(time.time() * 1000)}")
    assert (beginning["ledgerId"], beginning["entryId"]) == (-1, -1)
    assert call("POST", f"{path}/subscription/s/resetcursor", beginning).status == 204


def test_messages_expire_up_to_an_id(call: Http, client: Client, name: str, ids: list[MessageId]) -> None:
    path = f"{PERSISTENT}/{name}/subscription/s"
    client.subscribe(name, "s", initial_position=InitialPosition.Earliest).close()

    def expire(at: MessageId, **more: object) -> int:
        place = {"ledgerId": at.ledger_id(), "entryId": at.entry_id(), "partitionIndex": -1, **more}
        return call("POST", f"{path}/expireMessages", place).status

    assert expire(ids[2], excluded=True) == 204
    assert call("GET", f"{path}/position/1").body == b"m2"
    assert expire(ids[3], excluded=False) == 204
    assert call("GET", f"{path}/position/1").body == b"m4"
    assert expire(ids[0]) == 204
    assert call("GET", f"{path}/position/1").body == b"m4"
    assert expire(MessageId(-1, 10**12, 5)) == 204
    with client.create_producer(name) as producer:
        producer.send(b"later")
    assert call("GET", f"{path}/position/1").body == b"later"
    assert expire(ids[0], excluded=1) == 400
    assert call("POST", f"{path}/expireMessages", {}).status == 400
    assert (
        call(
            "POST", f"{PERSISTENT}/{name}/subscription/none/expireMessages", {"ledgerId": 0, "entryId": 0}
        ).status
        == 404
    )
