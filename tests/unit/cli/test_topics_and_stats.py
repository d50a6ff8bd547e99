from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget

ODD = "say [/b] [red]\n\x1b[31m"
ODD_AS_SHOWN = r"say [/b] [red]\n\x1b[31m"
PARTITION: dict[str, Any] = {
    "msgInCounter": 1234,
    "msgChunkPublished": True,
    "chunkedMessageRate": 3.25,
    "msgRateIn": 12.25,
    "bytesInCounter": 10,
    "storageSize": 5000,
    "msgOutCounter": 0,
    "bytesOutCounter": 0,
    "publishers": [{"producerName": "p"}],
    "corruptions": ["segment 1 is corrupt"],
}


def test_names_one_per_line_for_other_programs(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.topic_partitions = {"a": 0, "b": 4}
    assert run(target, "topics", "list").stdout == "a\nb\n"
    assert json.loads(run(target, "topics", "list", "--json").stdout) == {"a": 0, "b": 4}
    assert run(target, "topics", "list", "--namespace", "x/y").stdout == ""


def test_a_table_on_a_terminal_shows_names_as_they_can_be_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=300, highlight=False)
    monkeypatch.setattr("pulsar_ray.cli.administration.topics.out", lambda: console)
    target = FakeTarget()
    target.the_admin.topic_partitions = {ODD: 0}
    run(target, "topics", "list")
    assert ODD_AS_SHOWN in written.getvalue()
    assert run(target, "topics", "list", "--namespace", ODD).exit_code == 0
    assert written.getvalue().count("[red]") == 2
    assert "\x1b[31m" not in written.getvalue()


def test_create_grow_and_delete(run: Run) -> None:
    target = FakeTarget()
    run(target, "topics", "create", "t")
    run(target, "topics", "create", "t", "--partitions", "3")
    assert run(target, "topics", "update", "t", "--partitions", "5").stdout == "t has 5 partitions\n"
    run(target, "topics", "delete", "t")
    run(target, "topics", "delete", "t", "--force")
    assert [call for call in target.the_admin.calls if call != "close"] == [
        ("create", "t"),
        ("create", "t", 3),
        ("update_partitioned_topic", "t", 5),
        ("delete", "t", False),
        ("delete", "t", True),
    ]
    assert target.the_admin.calls.count("close") == 5


def test_ending_and_emptying(run: Run) -> None:
    target = FakeTarget()
    assert run(target, "topics", "terminate", "t").stdout == "terminated t at (5,6,-1,-1)\n"
    assert run(target, "topics", "partitioned-terminate", "t").stdout == (
        "terminated partition 0 of t at (5,6,0,-1)\nterminated partition 1 of t at (5,6,1,-1)\n"
    )
    assert run(target, "topics", "truncate", "t").stdout == "truncated t\n"
    assert run(target, "topics", "unload", "t").stdout == "unloaded t\n"
    assert run(target, "topics", "delete-many", "a", "b", "--force").stdout == "deleted 2 topics\n"
    assert run(target, "topics", "delete-many").exit_code == 2
    assert [call for call in target.the_admin.calls if call != "close"] == [
        ("terminate_topic", "t"),
        ("terminate_partitioned_topic", "t"),
        ("truncate", "t"),
        ("unload", "t"),
        ("delete_many", "a", "b", True),
    ]


def test_compacting(run: Run) -> None:
    target = FakeTarget()
    begun = run(target, "topics", "compact", "t").stdout
    assert begun == "compaction of t has begun: pulsar-ray topics compaction-status t\n"
    spaced = run(FakeTarget(), "topics", "compact", "a $b").stdout
    assert spaced == "compaction of a $b has begun: pulsar-ray topics compaction-status 'a $b'\n"
    status = json.loads(run(target, "topics", "compaction-status", "t").stdout)
    assert status == {"status": "RUNNING", "last_error": "", "progress": 0.5}
    calls = [call for call in target.the_admin.calls if call != "close"]
    assert calls == [("compact", "t"), ("compaction_status", "t")]


def test_backlogs_of_a_namespace_are_cleared_once_somebody_says_so(run: Run) -> None:
    target = FakeTarget()
    assert run(target, "namespaces", "clear-backlog", "shop/eu").exit_code == 1
    assert target.the_admin.calls == []
    run(target, "namespaces", "clear-backlog", "shop/eu", "--force")
    run(target, "namespaces", "clear-backlog", "shop/eu", "-s", "one", "-f")
    assert [call for call in target.the_admin.calls if call != "close"] == [
        ("namespaces.clear_backlog", "shop/eu", None),
        ("namespaces.clear_backlog", "shop/eu", "one"),
    ]


def test_growing_needs_a_number(run: Run) -> None:
    target = FakeTarget()
    for wrong in ((), ("--partitions", "0"), ("--partitions", "many")):
        assert run(target, "topics", "update", "t", *wrong).exit_code == 2
    assert target.the_admin.calls == []


def test_stats_of_a_topic(run: Run) -> None:
    target = FakeTarget()
    subscription = {
        "type": "Key_Shared",
        "msgBacklog": 77,
        "unackedMessages": 3,
        "msgOutCounter": 5,
        "msgRateOut": 0.5,
        "isDurable": True,
        "problem": "a broken cursor",
    }
    target.the_admin.topic_stats = {
        **PARTITION,
        "subscriptions": {"audit": {**subscription, "consumers": [{"consumerName": "c1"}]}},
        "partitions": {"t-partition-0": PARTITION},
    }
    result = run(target, "stats", "t")
    assert result.exit_code == 0
    for text in ("1,234", "12.2", "5.0 kB", "audit", "Key_Shared", "77", "c1", "3.2 chunks"):
        assert text in result.stdout
    assert "t-partition-0: segment 1 is corrupt" in result.stderr
    assert "audit: a broken cursor" in result.stderr
    assert json.loads(run(target, "stats", "t", "--json").stdout) == target.the_admin.topic_stats


def test_names_of_all_kinds_are_shown_as_they_can_be_read(run: Run) -> None:
    odd, shown = ODD, ODD_AS_SHOWN
    target = FakeTarget()
    one = {"type": "Shared", "msgBacklog": 1, "unackedMessages": 0, "msgOutCounter": 5, "msgRateOut": 0.5}
    one |= {"isDurable": True, "problem": f"of {odd}", "consumers": [{"consumerName": odd}]}
    target.the_admin.topic_stats = {**PARTITION, "corruptions": [odd], "subscriptions": {odd: one}}
    result = run(target, "stats", odd, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].strip() == shown
    assert f"{shown}: of {shown}" in result.stderr
    assert f"{shown}: {shown}" in result.stderr
    row = next(line for line in result.stdout.splitlines() if "Shared" in line)
    assert row.count(shown) == 2
    assert "\x1b" not in result.output


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("topics", "list"), "NAME\n"),
        (("topics", "subscriptions", "t"), "NAME\n"),
        (("topics", "forget-producers", "t", "prefix"), "NAME\n"),
        (("topics", "create", ODD), "created NAME\n"),
        (("topics", "delete", ODD), "deleted NAME\n"),
        (("topics", "expire-messages-all-subscriptions", "t", "-t", "1"), "NAME: expired 3 entries\n"),
        (("topics", "key-owner", ODD, "-s", "s", "k"), "NAME: hash 7, owner NAME\n"),
        (("topics", "policies", "set", ODD, "max_consumers", "5"), "set max_consumers of NAME\n"),
        (("namespaces", "topics", "public/default"), "NAME\n"),
        (("namespaces", "abandon-change-logs", "public/default", "--yes"), "abandoned NAME\n"),
        (("tenants", "list"), "NAME\n"),
    ],
    ids=lambda given: " ".join(given[:2]) if isinstance(given, tuple) else "",
)
def test_a_name_for_other_programs_stays_one_line(run: Run, arguments: tuple[str, ...], shown: str) -> None:
    target = FakeTarget()
    target.the_admin.topic_partitions = {ODD: 0}
    owner = {"hash": 7, "owner": ODD, "drainedBy": []}
    target.the_admin.answers = {
        **{call: [ODD] for call in ("subscriptions", "forget_producers", "list", "tenants.list")},
        "namespaces.abandon_change_logs": [ODD],
        "expire_messages_all_subscriptions": {ODD: 3},
        "key_owner": owner,
    }
    result = run(target, *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == shown.replace("NAME", ODD_AS_SHOWN)


def test_json_has_names_exactly(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.topic_partitions = {ODD: 3}
    assert json.loads(run(target, "topics", "list", "--json").stdout) == {ODD: 3}


def test_more_stats_are_json(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.topic_stats = {"a": 1}
    for command in ("stats-internal", "partitioned-stats"):
        assert json.loads(run(target, "topics", command, "t").stdout) == {"a": 1, "call": command}
    assert json.loads(run(target, "topics", "stats", "t", "--json").stdout) == {"a": 1}


def test_stats_of_the_broker(run: Run) -> None:
    result = run(FakeTarget(), "stats")
    for text in ("5.0 GB", "10.0 GB", "17", "ActorDiedError", "0 topics"):
        assert text in result.stdout


def test_stats_show_what_is_special_for_producers(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.topic_stats = {**PARTITION, "subscriptions": {}}
    usual = run(target, "stats", "t").stdout
    assert "deduplication" not in usual
    assert "epoch" not in usual
    assert "schema" not in usual
    target.the_admin.topic_stats |= {
        "deduplicationStatus": "Enabled",
        "topicEpoch": 3,
        "waitingPublishers": 2,
        "schemaType": "AVRO",
        "schemaVersion": 3,
    }
    shown = run(target, "stats", "t").stdout
    assert "schema: AVRO, version 3\n" in shown
    assert "deduplication: Enabled\ntopic epoch: 3\n" in shown
    assert "have the topic for themselves: 2" in shown


def test_forgotten_producers_are_shown(run: Run) -> None:
    target = FakeTarget()
    target.the_admin.answers["forget_producers"] = ["q-1", "q-2"]
    assert run(target, "topics", "forget-producers", "t", "q-").stdout == "q-1\nq-2\n"
    assert target.the_admin.calls[0] == ("forget_producers", "t", "q-")
