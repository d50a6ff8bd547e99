"""Administration by Pulsar's REST paths: statuses, bodies, and what they change."""

from __future__ import annotations

import tracemalloc
from typing import Any
from urllib.parse import quote

import pytest

from pulsar_ray.admin.policies import Policies
from pulsar_ray.admin.tenants import Tenants
from pulsar_ray.admin.topics import Topics
from pulsar_ray.client.client import Client
from pulsar_ray.model.enums import InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Http

PERSISTENT = "/admin/v2/persistent/public/default"


def test_a_topic_comes_is_listed_and_goes(call: Http, name: str) -> None:
    path = f"{PERSISTENT}/{name}"
    assert call("PUT", path).status == 204
    assert call("PUT", path).status == 409
    assert f"persistent://public/default/{name}" in call.ok("GET", PERSISTENT)
    assert call.ok("GET", f"{path}/partitions") == {"partitions": 0, "deleted": False}
    assert call("DELETE", f"{path}?force=false&deleteSchema=true").status == 204
    gone = call("DELETE", path)
    assert gone.status == 404
    assert name in gone.json["reason"]
    assert call("GET", f"{path}/stats").status == 404


def test_a_partitioned_topic_comes_grows_and_goes(call: Http, name: str) -> None:
    path, full = f"{PERSISTENT}/{name}", f"persistent://public/default/{name}"
    assert call("PUT", f"{path}/partitions", 2).status == 204
    assert call("PUT", f"{path}/partitions", 2).status == 409
    assert call.ok("GET", f"{path}/partitions")["partitions"] == 2
    assert call.ok("GET", f"{PERSISTENT}/{name}-partition-1/partitions")["partitions"] == 0
    assert call("GET", f"{PERSISTENT}/{name}-partition-2/partitions").status == 404
    assert full in call.ok("GET", f"{PERSISTENT}/partitioned")
    listed = call.ok("GET", PERSISTENT)
    assert f"{full}-partition-1" in listed
    assert full not in listed
    assert call("POST", f"{path}/partitions", 3).status == 204
    shrunk = call("POST", f"{path}/partitions", 2)
    assert shrunk.status == 422
    assert "can only grow" in shrunk.json["reason"]
    assert call("DELETE", path).status == 409
    stats = call.ok("GET", f"{path}/partitioned-stats?perPartition=true")
    assert sorted(stats["partitions"]) == [f"{full}-partition-{index}" for index in range(3)]
    assert stats["metadata"]["partitions"] == 3
    assert call("GET", f"{path}/stats").status == 404
    assert call("DELETE", f"{path}/partitions").status == 204


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b'"x"', 400), (b"0", 406), (b"true", 400), (b"", 400)]
)
def test_a_wrong_number_of_partitions_is_refused(call: Http, name: str, body: bytes, status: int) -> None:
    answer = call("PUT", f"{PERSISTENT}/{name}/partitions", body)
    assert answer.status == status
    assert answer.json["reason"]


def test_a_form_is_no_json(call: Http, name: str) -> None:
    answer = call("PUT", f"{PERSISTENT}/{name}/partitions", b"3", **{"Content-Type": "text/plain"})
    assert answer.status == 415


def test_names_are_decoded_once(call: Http) -> None:
    path = f"{PERSISTENT}/a%2Fb%20c"
    assert call("PUT", path).status == 204
    assert "persistent://public/default/a/b c" in call.ok("GET", PERSISTENT)
    assert call("PUT", f"{path}/subscription/s%2F1").status == 204
    assert call.ok("GET", f"{path}/subscriptions") == ["s/1"]
    assert call("DELETE", path).status == 204


def test_a_scaler_reads_the_backlog(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name)
    client.subscribe(name, "workers", initial_position=InitialPosition.Earliest).close()
    producer.send_many([b"x"] * 7)
    stats = call.ok("GET", f"{PERSISTENT}/{name}/stats")
    workers = stats["subscriptions"]["workers"]
    assert type(workers["msgBacklog"]) is int
    assert workers["msgBacklog"] >= 1
    assert isinstance(stats["msgRateIn"], float)
    assert isinstance(stats["msgInCounter"], int)
    assert isinstance(workers["consumersAfterMarkDeletePosition"], dict)
    assert isinstance(stats["replication"], dict)
    assert isinstance(stats["publishers"], list)


def test_a_subscription_is_created_peeked_skipped_reset_and_deleted(
    call: Http, client: Client, name: str
) -> None:
    producer = client.create_producer(name, batching_enabled=False)
    path = f"{PERSISTENT}/{name}/subscription/s"
    earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchIndex": -1, "batchSize": 0}
    assert call("PUT", path, earliest).status == 204
    assert call("PUT", path, earliest).status == 409
    ids = [producer.send(b"m%d" % n, properties={"n": str(n)}, partition_key="k") for n in range(4)]
    peeked = call("GET", f"{path}/position/2")
    assert (peeked.status, peeked.body) == (200, b"m1")
    assert peeked.headers["X-Pulsar-Message-ID"] == f"{ids[1].ledger_id()}:{ids[1].entry_id()}"
    assert peeked.headers["X-Pulsar-PROPERTY"] == '{"n": "1"}'
    assert call("GET", f"{path}/position/5").status == 404
    assert call("POST", f"{path}/skip/1").status == 204
    assert call("GET", f"{path}/position/1").body == b"m1"
    place = {"ledgerId": ids[3].ledger_id(), "entryId": ids[3].entry_id(), "partitionIndex": -1}
    assert call("POST", f"{path}/resetcursor", place).status == 204
    assert call("GET", f"{path}/position/1").body == b"m3"
    first = {"ledgerId": ids[0].ledger_id(), "entryId": ids[0].entry_id(), "excluded": True}
    assert call("POST", f"{path}/resetcursor", first).status == 204
    assert call("GET", f"{path}/position/1").body == b"m1"
    assert call("POST", f"{path}/resetcursor", {**earliest, "excluded": True}).status == 204
    assert call("GET", f"{path}/position/1").body == b"m0"
    latest = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "excluded": True}
    assert call("POST", f"{path}/resetcursor", latest).status == 204
    assert call("GET", f"{path}/position/1").status == 404
    assert call("POST", f"{path}/resetcursor", {**first, "excluded": "yes"}).status == 400
    assert call("POST", f"{path}/resetcursor/0").status == 204
    assert call("GET", f"{path}/position/1").body == b"m0"
    assert call("POST", f"{path}/skip_all").status == 204
    assert call("GET", f"{path}/position/1").status == 404
    last = call.ok("GET", f"{PERSISTENT}/{name}/lastMessageId")
    assert (last["ledgerId"], last["entryId"]) == (ids[3].ledger_id(), ids[3].entry_id())
    with client.subscribe(name, "s"):
        busy = call("DELETE", path)
        assert busy.status == 412, busy.body
    assert call("DELETE", path).status == 204
    assert call("DELETE", path).status == 404


def test_properties_of_a_subscription_are_kept(call: Http, name: str) -> None:
    path = f"{PERSISTENT}/{name}/subscription/s"
    call.ok("PUT", f"{PERSISTENT}/{name}")
    call.ok("PUT", path)
    assert call("PUT", f"{path}/properties", {"a": "b"}).status == 204
    assert call.ok("GET", f"{path}/properties") == {"a": "b"}


def test_a_topic_is_ended_truncated_and_unloaded(call: Http, client: Client, name: str) -> None:
    last = client.create_producer(name).send(b"x")
    path = f"{PERSISTENT}/{name}"
    assert call("PUT", f"{path}/unload").status == 204
    assert call("DELETE", f"{path}/truncate").status == 204
    ended = call.ok("POST", f"{path}/terminate")
    assert (ended["ledgerId"], ended["entryId"]) == (last.ledger_id(), last.entry_id())
    assert call.ok("GET", f"{path}/internalStats")["state"] == "Terminated"


def test_a_topic_is_compacted(call: Http, client: Client, name: str) -> None:
    producer = client.create_producer(name)
    for number in range(3):
        producer.send(b"%d" % number, partition_key="k")
    path = f"{PERSISTENT}/{name}/compaction"
    assert call.ok("GET", path) == {"status": "NOT_RUN", "lastError": ""}
    assert call("PUT", path).status == 204
    wait_until(lambda: call.ok("GET", path)["status"] == "SUCCESS")
    reader = client.create_reader(name, MessageId.earliest, is_read_compacted=True)
    assert reader.read_next(20_000).data() == b"2"
    assert call("PUT", f"{PERSISTENT}/{name}-gone/compaction").status == 404


def test_offloading_needs_an_object_store(call: Http, name: str) -> None:
    path = f"{PERSISTENT}/{name}/offload"
    call.ok("PUT", f"{PERSISTENT}/{name}")
    status = call.ok("GET", path)
    assert (status["status"], status["lastError"]) == ("NOT_RUN", "")
    assert status["firstUnoffloadedMessage"].keys() == {"ledgerId", "entryId"}
    answer = call("PUT", path, {"ledgerId": 5, "entryId": 0})
    assert answer.status == 409
    assert "--remote" in answer.json["reason"]


@pytest.mark.parametrize("roles", [5, "abc", {}, [5]])
def test_roles_that_are_no_list_of_names_are_refused_in_words(call: Http, name: str, roles: object) -> None:
    answer = call("PUT", f"/admin/v2/tenants/{name}", {"adminRoles": roles})
    assert answer.status == 412
    assert answer.json["reason"].startswith("Argument admin_roles=")
    assert name not in call.ok("GET", "/admin/v2/tenants")


def test_tenants_and_namespaces_come_and_go(call: Http, name: str) -> None:
    tenant, space = f"/admin/v2/tenants/{name}", f"/admin/v2/namespaces/{name}/ns"
    assert call("PUT", tenant, {"adminRoles": ["r"], "allowedClusters": ["standalone"]}).status == 204
    assert call("PUT", tenant, {}).status == 409
    assert call.ok("GET", tenant) == {"adminRoles": ["r"], "allowedClusters": ["standalone"]}
    assert name in call.ok("GET", "/admin/v2/tenants")
    assert call("PUT", space).status == 204
    assert call("PUT", space).status == 409
    assert call("PUT", "/admin/v2/namespaces/nobody/ns").status == 404
    assert call.ok("GET", f"/admin/v2/namespaces/{name}") == [f"{name}/ns"]
    assert call("DELETE", tenant).status == 409
    assert call("PUT", f"/admin/v2/persistent/{name}/ns/t").status == 204
    assert call.ok("GET", f"{space}/topics") == [f"persistent://{name}/ns/t"]
    assert call("DELETE", space).status == 409
    assert call("DELETE", f"/admin/v2/persistent/{name}/ns/t").status == 204
    assert call("DELETE", space).status == 204
    assert call("GET", space).status == 404
    assert call("DELETE", tenant).status == 204
    assert call("GET", tenant).status == 404


POLICIES = [
    ("retention", "retention", {"retentionTimeInMinutes": 180, "retentionSizeInMB": 100}),
    ("deduplication", "deduplicationEnabled", True),
    ("maxProducersPerTopic", "maxProducers", 5),
    ("maxUnackedMessagesPerConsumer", "maxUnackedMessagesOnConsumer", 70),
    ("delayedDelivery", "delayedDelivery", {"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 0}),
    (
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        },
    ),
    ("autoSubscriptionCreation", "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
    (
        "publishRate",
        "publishRate",
        {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 1_000_000},
    ),
    ("subscriptionTypesEnabled", "subscriptionTypesEnabled", ["Shared", "Exclusive"]),
    ("schemaValidationEnforced", "schemaValidationEnforced", True),
    ("compactionThreshold", "compactionThreshold", 10_485_760),
    ("offloadThreshold", "offloadThreshold", 10_485_760),
    ("offloadThresholdInSeconds", "offloadThresholdInSeconds", 3_600),
    ("offloadDeletionLagMs", "offloadDeletionLagMs", 60_000),
]


def changes_of(path: str) -> str:
    """The method that sets a policy, which is not the same one everywhere in Pulsar."""
    puts = ("ns/compactionThreshold", "ns/offloadThreshold", "Seconds", "ns/offloadDeletionLagMs")
    return "PUT" if path.endswith(puts) and "/namespaces/" in path else "POST"


@pytest.mark.parametrize(("of_namespace", "of_topic", "body"), POLICIES, ids=[row[0] for row in POLICIES])
def test_a_policy_is_set_read_and_removed_at_both_levels(
    call: Http, name: str, of_namespace: str, of_topic: str, body: object
) -> None:
    call.ok("PUT", f"/admin/v2/tenants/{name}", {})
    call.ok("PUT", f"/admin/v2/namespaces/{name}/ns")
    call.ok("PUT", f"/admin/v2/persistent/{name}/ns/t")
    namespace = f"/admin/v2/namespaces/{name}/ns/{of_namespace}"
    topic = f"/admin/v2/persistent/{name}/ns/t/{of_topic}"
    for path in (namespace, topic):
        unset = call("GET", path)
        assert (unset.status, unset.body) == (200, b"")
        assert call(changes_of(path), path, body).status == 204
        assert call.ok("GET", path) == body
        assert call("DELETE", path).status == 204
        assert call("GET", path).body == b""
    assert call(changes_of(namespace), namespace, body).status == 204
    assert call.ok("GET", f"{topic}?applied=true") == body
    assert call("GET", f"{topic}?applied=false").body == b""


def test_a_quota_by_size_and_one_by_age_are_kept_apart(call: Http, name: str) -> None:
    call.ok("PUT", f"{PERSISTENT}/{name}")
    path = f"{PERSISTENT}/{name}"
    size = {"limitSize": 1000, "limitTime": -1, "limit": 1000, "policy": "producer_exception"}
    assert call.ok("GET", f"{path}/backlogQuotaMap") == {}
    assert call("POST", f"{path}/backlogQuota?backlogQuotaType=destination_storage", size).status == 204
    assert call.ok("GET", f"{path}/backlogQuotaMap") == {"destination_storage": size}
    age = {"limitSize": -1, "limitTime": 60, "policy": "producer_exception"}
    assert call("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", age).status == 204
    assert sorted(call.ok("GET", f"{path}/backlogQuotaMap")) == ["destination_storage", "message_age"]
    assert call("DELETE", f"{path}/backlogQuota?backlogQuotaType=destination_storage").status == 204
    assert sorted(call.ok("GET", f"{path}/backlogQuotaMap")) == ["message_age"]


def test_one_of_two_quotas_is_removed_in_one_step(
    call: Http, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{PERSISTENT}/{name}"
    call.ok("PUT", path)
    call.ok("POST", f"{path}/backlogQuota", {"limit": 1000, "policy": "producer_exception"})
    age = {"limitTime": 60, "policy": "producer_exception"}
    call.ok("POST", f"{path}/backlogQuota?backlogQuotaType=message_age", age)

    def fail(*_: object) -> None:
        raise AssertionError("a quota that stays was removed")

    monkeypatch.setattr(Policies, "remove", fail)
    assert call("DELETE", f"{path}/backlogQuota").status == 204
    assert sorted(call.ok("GET", f"{path}/backlogQuotaMap")) == ["message_age"]


def test_the_cursors_of_a_topic_without_storage_are_looked_at(call: Http, client: Client, name: str) -> None:
    path = f"/admin/v2/non-persistent/public/default/{name}/internalStats"
    with client.subscribe(f"non-persistent://public/default/{name}", "s"):
        described = call.ok("GET", path)
    assert (described["state"], described["numberOfEntries"]) == ("LedgerOpened", 0)
    assert list(described["cursors"]) == ["s"]


def test_a_subscription_goes_from_a_namespace_although_a_topic_goes_meanwhile(
    call: Http, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call.ok("PUT", f"/admin/v2/namespaces/public/{name}")
    topics = [f"persistent://public/{name}/{number}" for number in range(2)]
    for topic in topics:
        client.subscribe(topic, "s").close()
    listed = Topics.list

    def then_one_goes(*arguments: Any, **named: Any) -> list[str]:
        found = listed(*arguments, **named)
        call.ok("DELETE", f"/admin/v2/persistent/public/{name}/0")
        return found

    monkeypatch.setattr(Topics, "list", then_one_goes)
    call.ok("POST", f"/admin/v2/namespaces/public/{name}/unsubscribe/s")
    assert call.ok("GET", f"/admin/v2/persistent/public/{name}/1/subscriptions") == []


def test_the_ttl_of_a_topic_is_in_the_query(call: Http, name: str) -> None:
    path = f"{PERSISTENT}/{name}"
    call.ok("PUT", path)
    assert call("POST", f"{path}/messageTTL?messageTTL=60").status == 204
    assert call.ok("GET", f"{path}/messageTTL?applied=false") == 60
    assert call("POST", f"{path}/messageTTL?messageTTL=-3").status == 400


def test_a_namespace_describes_its_policies(call: Http, name: str) -> None:
    call.ok("PUT", f"/admin/v2/tenants/{name}", {})
    path = f"/admin/v2/namespaces/{name}/ns"
    call.ok("PUT", path)
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6}
    call.ok("POST", f"{path}/retention", retention)
    assert call.ok("GET", path)["retention_policies"] == retention


def test_a_policy_out_of_range_is_refused_in_words(call: Http, name: str) -> None:
    call.ok("PUT", f"{PERSISTENT}/{name}")
    answer = call("POST", f"{PERSISTENT}/{name}/maxProducers", -1)
    assert answer.status == 412
    assert "max_producers" in answer.json["reason"]
    assert call("POST", f"{PERSISTENT}/{name}/maxProducers", "many").status == 400


def test_schemas_are_uploaded_listed_tested_and_deleted(call: Http, name: str) -> None:
    path = f"/admin/v2/schemas/public/default/{name}"
    text = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    schema = {"type": "AVRO", "schema": text, "properties": {"k": "v"}}
    assert call("GET", f"{path}/schema").status == 404
    assert call.ok("GET", f"{path}/schemas") == {"getSchemaResponses": []}
    assert call.ok("POST", f"{path}/version", schema) == {"version": -1}
    assert call.ok("POST", f"{path}/schema", schema) == {"version": {"version": 0}}
    kept = call.ok("GET", f"{path}/schema")
    assert (kept["version"], kept["type"], kept["data"], kept["properties"]) == (
        0,
        "AVRO",
        text,
        {"k": "v"},
    )
    assert call.ok("GET", f"{path}/schema/0") == kept
    assert call.ok("POST", f"{path}/version", schema) == {"version": 0}
    other = {"type": "JSON", "schema": text, "properties": {}}
    tested = call("POST", f"{path}/compatibility", other)
    assert tested.status == 202
    assert tested.json["compatibility"] is False
    assert tested.json["reason"]
    assert call("POST", f"{path}/schema", other).status == 409
    assert call("POST", f"{path}/schema", {"type": "AVRO", "schema": "zork"}).status == 422
    assert call.ok("DELETE", f"{path}/schema") == {"version": 1}


def test_a_peek_holds_one_message_at_a_time(call: Http, name: str) -> None:
    path = f"{PERSISTENT}/{name}"
    call.ok("PUT", path)
    call.ok("PUT", f"{path}/subscription/s")
    for number in range(80):
        message = {"payload": f"{number:02}" * 500_000}
        call.ok("POST", f"/topics/persistent/public/default/{name}", {"messages": [message]})
    tracemalloc.start()
    try:
        assert call("GET", f"{path}/subscription/s/position/80").body[:2] == b"79"
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 60 << 20
    assert call("GET", f"{path}/subscription/s/position/81").status == 404


def test_names_may_have_any_sign(call: Http, name: str) -> None:
    topic = f"{name}{{{{7*7}}}}'\"<b>/../%2F+ \u65e5"
    quoted = quote(topic, safe="")
    call.ok("PUT", f"{PERSISTENT}/{quoted}")
    call.ok("PUT", f"{PERSISTENT}/{quoted}/subscription/{quoted}")
    assert call.ok("GET", f"{PERSISTENT}/{quoted}/subscriptions") == [topic]
    assert f"persistent://public/default/{topic}" in call.ok("GET", f"{PERSISTENT}")
    call.ok("POST", f"/topics/persistent/public/default/{quoted}", {"messages": [{"payload": "x"}]})
    assert call("GET", f"/ui/topics/persistent/public/default/{quoted}/messages").status == 200
    assert call("GET", f"{PERSISTENT}/{quoted}/subscription/{quoted}/position/1").body == b"x"


def test_an_error_that_nobody_expected_has_a_reason(
    call: Http, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Tenants) -> None:
        raise KeyError("gone")

    monkeypatch.setattr(Tenants, "list", fail)
    answer = call("GET", "/admin/v2/tenants")
    assert answer.status == 500
    assert "the log of HTTP" in answer.json["reason"]
    assert "KeyError: 'gone'" in caplog.text


def test_what_is_not_here_says_so(call: Http, name: str) -> None:
    call.ok("PUT", f"{PERSISTENT}/{name}")
    for path in ("offloadPolicies", "persistence", "properties"):
        answer = call("GET", f"{PERSISTENT}/{name}/{path}")
        assert answer.status == 501, path
        assert "pulsar_ray has no" in answer.json["reason"], path
    namespace, subscription = "namespaces/public/default", f"persistent/public/default/{name}/subscription/s"
    for method, path in (
        ("PUT", "clusters/mine"),
        ("POST", "clusters/standalone"),
        ("DELETE", "clusters/standalone"),
        ("GET", "clusters/standalone/peers"),
        ("GET", "clusters/standalone/namespaceIsolationPolicies"),
        ("GET", "resourcegroups"),
        ("GET", "resource-quotas"),
        ("GET", "resource-quotas/public/default/0x0_0xf"),
        ("GET", "brokers/configuration"),
        ("GET", "brokers/configuration/values"),
        ("POST", "brokers/configuration/name/1"),
        ("GET", "brokers/internal-configuration"),
        ("GET", "brokers/backlog-quota-check"),
        ("GET", "brokers/standalone/here/ownedNamespaces"),
        ("GET", "broker-stats/topics"),
        ("GET", "broker-stats/load-report"),
        ("GET", f"schemas/public/default/{name}/metadata"),
        ("POST", f"{subscription}/analyzeBacklog"),
        ("POST", f"{subscription}/replicatedSubscriptionStatus"),
        ("GET", f"{namespace}/resourcegroup"),
        ("POST", f"{namespace}/resourcegroup/name"),
        ("POST", f"{namespace}/encryptionRequired"),
        ("POST", f"{namespace}/subscriptionAuthMode"),
        ("POST", f"{namespace}/subscribeRate"),
        ("POST", f"persistent/public/default/{name}/subscribeRate"),
        ("PUT", f"persistent/public/default/{name}/shadowTopics"),
    ):
        answer = call(method, f"/admin/v2/{path}")
        assert answer.status == 501, path
        assert "pulsar_ray has no" in answer.json["reason"], path
    assert call("GET", "/metrics").status == 501
    unknown = call("GET", "/admin/v2/nonsense")
    assert unknown.status == 404
    assert unknown.json["reason"]
    assert call("PATCH", PERSISTENT).status == 405


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
def test_pages_of_other_sites_are_refused(call: Http, origin: str) -> None:
    answer = call("PUT", "/admin/v2/tenants/stolen", {}, Origin=origin)
    assert answer.status == 403
    assert call("PUT", "/admin/v2/tenants/stolen", {}, Host="evil.example").status == 403
    assert call("PUT", "/admin/v2/tenants/stolen", {}, Host="127.evil.example").status == 403
    assert "stolen" not in call.ok("GET", "/admin/v2/tenants")
    assert call("GET", "/admin/v2/tenants", Origin=call.url).status == 200


def test_clusters_brokers_and_lookups_are_answered(call: Http, name: str) -> None:
    assert call.ok("GET", "/admin/v2/clusters") == ["standalone"]
    assert call.ok("GET", "/admin/v2/brokers/standalone")
    assert call("GET", "/admin/v2/brokers/health").body == b"ok"
    assert call("GET", "/admin/v2/brokers/version").body
    assert "max_message_size" in call.ok("GET", "/admin/v2/brokers/configuration/runtime")
    assert call.ok("GET", f"/lookup/v2/topic/persistent/public/default/{name}")["httpUrl"] == call.url


@pytest.mark.parametrize(
    "path",
    [
        f"{PERSISTENT}/..%2F..%2Fetc/stats",
        f"{PERSISTENT}/%00/stats",
        f"{PERSISTENT}/{'x' * 5000}/stats",
        "/admin/v2/persistent/..%2F/default/t/stats",
        f"{PERSISTENT}/t/subscription/s/skip/many",
        f"{PERSISTENT}/t/subscription/s/resetcursor/99999999999999999999999",
        f"{PERSISTENT}/t/subscription/s/resetcursor/--5",
        f"{PERSISTENT}/t/subscription/s/resetcursor/{2**63}",
    ],
)
def test_a_path_that_means_nothing_is_refused_in_words(call: Http, path: str) -> None:
    answer = call("POST" if "/subscription/" in path else "GET", path)
    assert 400 <= answer.status < 500
    assert answer.json["reason"]
