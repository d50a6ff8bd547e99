"""What Pulsar has no path for, and that nothing which `Admin` offers was forgotten."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.client.dead_letters.letters import REAL_TOPIC
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.testing.stub_cluster import OTHER_STORE, STORE
from pulsar_ray.testing.waiting import wait_until
from tests.unit.gateway.conftest import Http, serving

PERSISTENT = "/admin/v2/persistent/public/default"
RAY = "/admin/v2/ray"
A = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
N = "/admin/v2/namespaces/{tenant}/{namespace}"
S = f"{A}/subscription/{{subscription}}"
T = "/admin/v2/tenants/{tenant}"
SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"

ROUTES = {
    "broker": f"GET {RAY}/broker",
    "stats": f"GET {RAY}/stats",
    "health": f"GET {RAY}/health",
    "overview": f"GET {RAY}/overview",
    "brokers.balance": f"POST {RAY}/balance",
    "brokers.drain": f"PUT {RAY}/nodes/{{node}}/drain",
    "brokers.expect_stores": f"PUT {RAY}/expectedStores",
    "brokers.healthcheck": "GET /health",
    "brokers.list": "GET /admin/v2/brokers",
    "brokers.moves": f"GET {RAY}/moves",
    "brokers.nodes": f"GET {RAY}/nodes",
    "brokers.undrain": f"DELETE {RAY}/nodes/{{node}}/drain",
    "namespaces.abandon_change_logs": f"POST {N}/abandonChangeLogs",
    "namespaces.clear_backlog": f"POST {N}/clearBacklog",
    "namespaces.create": f"PUT {N}",
    "namespaces.delete": f"DELETE {N}",
    "namespaces.list": "GET /admin/v2/namespaces/{tenant}",
    "namespaces.permissions.grant": f"POST {N}/permissions/{{role}}",
    "namespaces.permissions.grant_subscription": f"POST {N}/permissions/subscription/{{subscription}}",
    "namespaces.permissions.list": f"GET {N}/permissions",
    "namespaces.permissions.revoke": f"DELETE {N}/permissions/{{role}}",
    "namespaces.permissions.revoke_subscription": f"DELETE {N}/permissions/{{subscription}}/{{role}}",
    "namespaces.permissions.subscriptions": f"GET {N}/permissions/subscription",
    "namespaces.policies.get": f"GET {N}/retention",
    "namespaces.policies.list": f"GET {N}",
    "namespaces.policies.remove": f"DELETE {N}/retention",
    "namespaces.policies.set": f"POST {N}/retention",
    "schemas.delete": f"DELETE {SCHEMA}/schema",
    "schemas.get": f"GET {SCHEMA}/schema",
    "schemas.test": f"POST {SCHEMA}/compatibility",
    "schemas.upload": f"POST {SCHEMA}/schema",
    "schemas.versions": f"GET {SCHEMA}/schemas",
    "stores.forget": f"DELETE {RAY}/stores/{{store}}",
    "stores.losses": f"GET {RAY}/stores/{{store}}",
    "stores.remote": f"GET {RAY}/remote",
    "tenants.create": f"PUT {T}",
    "tenants.delete": f"DELETE {T}",
    "tenants.get": f"GET {T}",
    "tenants.list": "GET /admin/v2/tenants",
    "tenants.update": f"POST {T}",
    "topics.compact": f"PUT {A}/compaction",
    "topics.compaction_status": f"GET {A}/compaction",
    "topics.create_partitioned_topic": f"PUT {A}/partitions",
    "topics.create_subscription": f"PUT {S}",
    "topics.create_topic": f"PUT {A}",
    "topics.delete": f"DELETE {A}",
    "topics.expire_messages": f"POST {S}/expireMessages/{{seconds}}",
    "topics.expire_messages_all_subscriptions": f"POST {A}/all_subscription/expireMessages/{{seconds}}",
    "topics.expire_messages_through": f"POST {S}/expireMessages",
    "topics.fetch_back": f"PUT {A}/fetchBack",
    "topics.forget_producers": f"DELETE {A}/producers",
    "topics.get_last_message_id": f"GET {A}/lastMessageId",
    "topics.get_partitions": f"GET {A}/partitions",
    "topics.key_owner": f"GET {S}/keyOwner",
    "topics.list": "GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned",
    "topics.move": f"POST {A}/move",
    "topics.offload": f"PUT {A}/offload",
    "topics.offload_status": f"GET {A}/offload",
    "topics.partitioned_stats": f"GET {A}/partitioned-stats",
    "topics.partitions": "GET /admin/v2/{domain}/{tenant}/{namespace}",
    "topics.peek_message": f"GET {S}/position/{{place}}",
    "topics.permissions.grant": f"POST {A}/permissions/{{role}}",
    "topics.permissions.list": f"GET {A}/permissions",
    "topics.permissions.revoke": f"DELETE {A}/permissions/{{role}}",
    "topics.policies.get": f"GET {A}/retention",
    "topics.policies.remove": f"DELETE {A}/retention",
    "topics.policies.set": f"POST {A}/retention",
    "topics.producer_sequence_ids": f"GET {A}/producers",
    "topics.redrive": f"POST {A}/redrive",
    "topics.reset_cursor": f"POST {S}/resetcursor",
    "topics.set_delayed_delivery_strict": f"POST {S}/delayedDeliveryStrict",
    "topics.skip": f"POST {S}/skip/{{count}}",
    "topics.skip_all": f"POST {S}/skip_all",
    "topics.stats": f"GET {A}/stats",
    "topics.stats_internal": f"GET {A}/internalStats",
    "topics.subscriptions": f"GET {A}/subscriptions",
    "topics.terminate_partitioned_topic": f"POST {A}/terminate/partitions",
    "topics.terminate_topic": f"POST {A}/terminate",
    "topics.truncate": f"DELETE {A}/truncate",
    "topics.unload": f"PUT {A}/unload",
    "topics.unsubscribe": f"DELETE {S}",
    "topics.update_partitioned_topic": f"POST {A}/partitions",
    "topics.update_subscription_properties": f"PUT {S}/properties",
    "topics.why_blocked": f"GET {S}/whyBlocked",
}
ON_THE_PAGE = {
    "topics.policies.list": "settings",
    "topics.why_blocked_awake": "subscription/s/why",
}
NOT_BY_HTTP = {
    "ask": "a call of the controller by its inner name",
    "close": "it ends the object, and not anything of the broker",
    "namespaces.permissions.deciding": "the gateway asks it of itself before each request",
    "topics.delete_many": "a request for each topic",
    "topics.peek_messages": "one message an answer, by its place; the page shows many",
    "topics.permissions.deciding": "the gateway asks it of itself before each request",
    "topics.permissions.grant_subscription": "subscriptions are granted in namespaces",
    "topics.permissions.revoke_subscription": "subscriptions are granted in namespaces",
    "topics.permissions.subscriptions": "subscriptions are granted in namespaces",
}


def offered(part: Any, prefix: str = "") -> Iterator[str]:
    """The public methods of a part of Admin, and of its own parts."""
    for name, _ in inspect.getmembers(type(part), inspect.isfunction):
        if not name.startswith("_"):
            yield f"{prefix}{name}"
    for name, each in vars(part).items():
        if not name.startswith("_") and type(each).__module__.startswith("pulsar_ray.admin."):
            yield from offered(each, f"{prefix}{name}.")


def test_all_that_admin_offers_has_a_route_or_a_reason(call: Http, name: str) -> None:
    with Admin._on(call.cluster) as admin:
        assert set(offered(admin)) == ROUTES.keys() | ON_THE_PAGE.keys() | NOT_BY_HTTP.keys()
    paths = call.ok("GET", "/openapi.json")["paths"]
    known = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert sorted(set(ROUTES.values()) - known) == []
    call.ok("PUT", f"{PERSISTENT}/{name}")
    call.ok("PUT", f"{PERSISTENT}/{name}/subscription/s")
    for path in ON_THE_PAGE.values():
        assert call("GET", f"/ui/topics/persistent/public/default/{name}/{path}").status == 200


def test_the_broker_is_described(call: Http, client: Client, name: str) -> None:
    client.create_producer(name).send(b"x")
    assert call.ok("GET", f"{RAY}/broker")["settings"]
    assert call.ok("GET", f"{RAY}/stats")["stores"]
    # What a disk of the machine that is nearly full makes of it is no matter here.
    findings = call.ok("GET", f"{RAY}/health")["findings"]
    assert [found for found in findings if found["kind"] != "store"] == []
    assert call.ok("GET", f"{RAY}/remote") == []
    found = call.ok("GET", f"{RAY}/overview?text={name}&sort=topic&limit=5")
    assert [row["name"] for row in found["topics"]] in ([], [f"persistent://public/default/{name}"])
    for wrong in ("sort=nothing", "limit=0", "limit=many"):
        assert call("GET", f"{RAY}/overview?{wrong}").status in (400, 412)
    assert call("PUT", f"{RAY}/expectedStores", 1).status == 204
    assert call("PUT", f"{RAY}/expectedStores", 0).status == 204
    assert call("PUT", f"{RAY}/expectedStores", -1).status == 412


def test_nodes_are_listed_drained_and_balanced(call: Http, name: str) -> None:
    (node,) = call.ok("GET", f"{RAY}/nodes")
    assert node.keys() >= {"host", "state", "storeId", "freeBytes", "remoteLagSeconds"}
    assert call.ok("POST", f"{RAY}/balance") == []
    assert call.ok("GET", f"{RAY}/moves") == []
    drained = call("PUT", f"{RAY}/nodes/{node['storeId']}/drain")
    assert (drained.status, bool(drained.json["reason"])) == (503, True)
    assert call("DELETE", f"{RAY}/nodes/{node['storeId']}/drain").status == 204
    assert call("PUT", f"{RAY}/nodes/nowhere/drain").status == 409
    call.ok("PUT", f"{PERSISTENT}/{name}")
    assert call.ok("POST", f"{PERSISTENT}/{name}/move", {"node": node["host"]}) == []
    assert call("POST", f"{PERSISTENT}/{name}/move", {"node": "nowhere"}).status == 409
    assert call("POST", f"{PERSISTENT}/{name}/move", {}).status == 400
    assert call("POST", f"{PERSISTENT}/{name}-gone/move", {"node": node["host"]}).status == 404


def test_a_store_that_is_there_is_not_forgotten(call: Http) -> None:
    (node,) = call.ok("GET", f"{RAY}/nodes")
    for method, path in (("GET", ""), ("DELETE", ""), ("DELETE", "?acceptLoss=true")):
        answer = call(method, f"{RAY}/stores/{node['storeId']}{path}")
        assert answer.status == 409, (method, path)
        assert answer.json["reason"]
    assert call("DELETE", f"{RAY}/stores/x?acceptLoss=perhaps").status == 400
    path = "/admin/v2/namespaces/public/default/abandonChangeLogs"
    assert call.ok("POST", path) == []


def test_letters_are_counted_and_sent_back_as_many_as_asked(call: Http, client: Client, name: str) -> None:
    home, letters = f"persistent://public/default/{name}", f"{name}-dlq"
    client.subscribe(home, "s", initial_position=InitialPosition.Earliest).close()
    client.subscribe(letters, "keep", initial_position=InitialPosition.Earliest).close()
    with client.create_producer(letters) as producer:
        for number in range(3):
            producer.send(b"%d" % number, properties={REAL_TOPIC: home})
    path = f"{PERSISTENT}/{letters}/redrive"
    assert call.ok("POST", path, {"dryRun": True}) == {home: 3}
    assert call.ok("POST", path, {"limit": 1, "subscription": "keep"}) == {home: 1}
    assert call.ok("POST", path) == {home: 2}
    for wrong in ({"limit": 10**9}, {"limit": "1"}, {"to": 1}, {"too": "x"}, {"dryRun": 1}):
        answer = call("POST", path, wrong)
        assert answer.status in (400, 412), wrong
        assert answer.json["reason"]


def test_producers_are_forgotten_by_how_their_names_begin(call: Http, client: Client, name: str) -> None:
    call.ok("PUT", f"{PERSISTENT}/{name}")
    call.ok("POST", f"{PERSISTENT}/{name}/deduplicationEnabled", True)
    client.create_producer(name, producer_name="a-1").send(b"x")
    path = f"{PERSISTENT}/{name}/producers"
    full = f"persistent://public/default/{name}"
    wait_until(lambda: call.ok("GET", f"{path}?prefix=a-") == {full: {"a-1": 0}})
    assert call("DELETE", path).status == 400
    assert call.ok("DELETE", f"{path}?prefix=a-") == ["a-1"]
    assert call.ok("GET", path) == {full: {}}


def test_a_subscription_says_why_it_waits_and_who_owns_a_key(call: Http, client: Client, name: str) -> None:
    path = f"{PERSISTENT}/{name}/subscription/s"
    with client.subscribe(name, "s", ConsumerType.KeyShared, consumer_name="one"):
        assert call.ok("GET", f"{path}/whyBlocked")["reason"]
        assert call.ok("GET", f"{path}/keyOwner?key=k")["owner"] == "one"
        assert call("GET", f"{path}/keyOwner").status == 400
    assert call("GET", f"{PERSISTENT}/{name}/subscription/nobody/whyBlocked").status == 404
    assert call("POST", f"{path}/delayedDeliveryStrict", True).status == 204
    assert call.ok("GET", f"{path}/properties") == {"delayed-delivery-strict": "true"}
    assert call("POST", f"{path}/delayedDeliveryStrict", "yes").status == 400
    assert call("DELETE", f"{path}/delayedDeliveryStrict").status == 204
    assert call("PUT", f"{PERSISTENT}/{name}/fetchBack").status == 409


def test_a_move_is_begun_and_watched(tmp_path: Path) -> None:
    with serving(tmp_path) as call:
        call.cluster.add_node()
        with Client._on(call.cluster) as client, client.create_producer("t") as producer:
            producer.send(b"x")
            here = call.cluster.store_of("persistent://public/default/t")
            place = OTHER_STORE if here == STORE else STORE
            (begun,) = call.ok("POST", f"{PERSISTENT}/t/move", {"node": place})
            assert (begun["source"], begun["target"]) == (here, place)

            def is_there() -> bool:
                (move,) = call.ok("GET", f"{RAY}/moves")
                return bool(move["isOver"] and move["moveId"] == begun["moveId"])

            wait_until(is_there, what="the move is over")
            assert call.cluster.store_of("persistent://public/default/t") == place
            producer.send(b"y")
