from __future__ import annotations

import json

import pytest

from pulsar_ray.admin.brokers import BrokerNode, Health
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget


@pytest.mark.parametrize(("group", "subject"), [("namespaces", "shop/eu"), ("topics", "orders")])
def test_values_are_read_as_their_settings_types(run: Run, group: str, subject: str) -> None:
    target = FakeTarget()
    values = ("retention_time_in_minutes=5", "retention_size_in_mb=-1")
    result = run(target, group, "policies", "set", subject, "retention", *values)
    assert result.exit_code == 0, result.stderr
    assert ("set", subject, "retention", {"retention_time_in_minutes": 5, "retention_size_in_mb": -1}) in (
        target.the_admin.calls
    )
    run(target, group, "policies", "set", subject, "max_consumers", "7")
    assert ("set", subject, "max_consumers", {"max_consumers": 7}) in target.the_admin.calls
    run(target, group, "policies", "remove", subject, "max_consumers")
    assert ("remove", subject, "max_consumers") in target.the_admin.calls


def test_a_policy_that_is_set_holds_without_a_warning(run: Run) -> None:
    result = run(FakeTarget(), "topics", "policies", "set", "t", "compaction_threshold", "60")
    assert (result.exit_code, result.stdout) == (0, "set compaction_threshold of t\n")
    assert result.stderr == ""
    assert run(FakeTarget(), "topics", "policies", "set", "t", "max_producers", "1").stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("retentoin", "1"), "did you mean retention?"),
        (("retention", "5"), "by name, as retention_time_in_minutes="),
        (("retention", "retention_time=5"), "it has retention_time_in_minutes"),
        (("max_consumers", "many"), "give an integer of at least 0"),
        (("max_consumers", "-1"), "give an integer of at least 0"),
        (("max_consumers", "-1.5e3"), "give an integer of at least 0"),
        (("max_consumers", "1", "2"), "by name, as max_consumers="),
        (("auto_topic_creation", "topic_type=partitioned"), "a policy of a namespace"),
    ],
)
def test_bad_values_are_one_line_with_the_remedy(run: Run, arguments: tuple[str, ...], says: str) -> None:
    target = FakeTarget()
    result = run(target, "topics", "policies", "set", "t", *arguments)
    assert result.exit_code == 1
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert not any(call[0] == "set" for call in target.the_admin.calls)


@pytest.mark.parametrize(
    "arguments",
    [
        ("max_consumers", "5", "--jsn"),
        ("max_consumers", "--jsn=1"),
        ("max_consumers", "-x", "-1"),
        ("-x", "max_consumers", "-1"),
        ("max_consumers", "-1=x"),
    ],
)
def test_a_mistyped_option_is_no_value(run: Run, arguments: tuple[str, ...]) -> None:
    target = FakeTarget()
    result = run(target, "namespaces", "policies", "set", "shop/eu", *arguments)
    assert result.exit_code == 2
    assert "No such option" in result.stderr
    assert not any(call[0] == "set" for call in target.the_admin.calls)


def test_effective_values_are_shown_with_their_sources(run: Run) -> None:
    shown = run(FakeTarget(), "namespaces", "policies", "get", "shop/eu").stdout
    assert "retention.retention_time_in_minutes\t0\tbroker\n" in shown
    assert "compaction_threshold\t0\tbroker\n" in shown
    one = json.loads(run(FakeTarget(), "topics", "policies", "get", "t", "max_consumers", "--json").stdout)
    assert one == {
        "max_consumers": {
            "value": {"max_consumers": 0},
            "sources": {"max_consumers": "broker"},
        }
    }
    assert run(FakeTarget(), "topics", "policies", "get", "t", "nothing").exit_code == 1


def test_help_lists_the_policies_of_the_level(run: Run) -> None:
    of_topics = run(FakeTarget(), "topics", "policies", "--help").stdout
    of_namespaces = run(FakeTarget(), "namespaces", "policies", "--help").stdout
    assert "auto_topic_creation" in of_namespaces
    assert "auto_topic_creation" not in of_topics
    assert "message_ttl" in of_topics


def test_tenants_and_namespaces(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.answers = {
        "tenants.list": ["public", "shop"],
        "tenants.get": {"admin_roles": ["a"], "allowed_clusters": []},
        "namespaces.list": ["shop/eu"],
    }
    assert run(target, "tenants", "list").stdout == "public\nshop\n"
    assert json.loads(run(target, "tenants", "get", "shop").stdout)["admin_roles"] == ["a"]
    assert run(target, "namespaces", "list", "shop").stdout == "shop/eu\n"
    run(target, "tenants", "create", "shop", "--admin-roles", "a, b")
    run(target, "tenants", "update", "shop", "-c", "here")
    run(target, "tenants", "delete", "shop", "--force")
    run(target, "namespaces", "create", "shop/eu")
    run(target, "namespaces", "delete", "shop/eu")
    assert [call for call in target.the_admin.calls if call != "close"][3:] == [
        ("tenants.create", "shop", ("admin_roles", ["a", "b"]), ("allowed_clusters", [])),
        ("tenants.update", "shop", ("admin_roles", []), ("allowed_clusters", ["here"])),
        ("tenants.delete", "shop", True),
        ("namespaces.create", "shop/eu"),
        ("namespaces.delete", "shop/eu", False),
    ]


def test_a_check_says_what_works_and_fails_if_anything_does_not(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.answers = {
        "brokers.list": ["a", "b"],
        "brokers.nodes": [
            BrokerNode("c", "away", "s", partitions=2, since_ms=10**12),
            BrokerNode("d", "away", "r", partitions=0, since_ms=10**12),
        ],
        "brokers.healthcheck": [Health("1", "a", 0.5, 0.75)],
    }
    listed = run(target, "brokers", "list")
    assert listed.stdout == "a\nb\n"
    assert listed.stderr.startswith("c: away since 2001-09-0")
    assert listed.stderr.endswith(", with 2 partitions\n")
    sound = run(target, "brokers", "healthcheck")
    assert (sound.exit_code, sound.stdout) == (0, "a: ok, published in 0.5 ms, read after 0.8 ms\n")
    target.the_admin.answers["brokers.healthcheck"].append(Health("2", "b", problem="the disk is full"))
    ill = run(target, "brokers", "healthcheck")
    assert (ill.exit_code, ill.stderr) == (1, "b: the disk is full\n")
    target.the_admin.answers["brokers.healthcheck"] = []
    assert run(target, "brokers", "healthcheck").exit_code == 1


def test_nodes_are_shown_with_their_stores_and_why_one_does_not_serve(run: Run) -> None:
    target = FakeTarget()
    serving = BrokerNode(
        "a", "serving", "5f2b", "0a1b2c3d4e5f", "/data", 3, free_bytes=2**30, total_bytes=2**31
    )
    empty = BrokerNode("b", "lost", "77aa", "1a", "/data", 2, since_ms=10**12, reason="/data is empty")
    target.the_admin.answers = {"brokers.nodes": [serving, empty]}
    shown = run(target, "nodes")
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert all(word in lines[3] for word in ("a", "0a1b2c3d", "5f2b", "serving", "3", "1.1 GB", "2.1 GB"))
    assert "lost since" in lines[4]
    assert "2001-09-0" in shown.stdout
    assert shown.stderr == "b: /data is empty\n"
    first, second = json.loads(run(target, "nodes", "--json").stdout)
    assert (first["state"], first["free_bytes"], second["since_ms"]) == ("serving", 2**30, 10**12)


def test_nodes_tell_how_far_stores_are_shipped(run: Run) -> None:
    target = FakeTarget()
    shipping = BrokerNode("a", "serving", "5f2b", remote_lag_seconds=2.34, remote_waiting_bytes=2**20)
    target.the_admin.answers = {"brokers.nodes": [shipping, BrokerNode("b", "away", "77aa")]}
    shown = run(target, "nodes").stdout.splitlines()
    assert ("lag" in shown[1], "to ship" in shown[1]) == (True, True)
    assert all(word in shown[3] for word in ("2.3 s", "1.0 MB"))
    told = json.loads(run(target, "nodes", "--json").stdout)
    assert [node["remote_lag_seconds"] for node in told] == [2.34, None]
