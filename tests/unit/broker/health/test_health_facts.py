from __future__ import annotations

from pulsar_ray.broker.health.disk_level import DiskLevel, DiskState
from pulsar_ray.broker.health.finding import HealthReport
from pulsar_ray.broker.health.health_facts import (
    SHOWN_PARTITIONS,
    ActorFacts,
    HealthFacts,
    StoreFacts,
    judge,
)

GOOD = StoreFacts("s1", "head", "/data")
DAMAGE = "2 ranges of its log are damaged and are passed over: `pulsar-ray verify` shows which"
TOPIC = "persistent://public/default/clicks"


def told(facts: HealthFacts) -> list[str]:
    return [finding.text() for finding in judge(facts).findings]


def test_nothing_is_wrong() -> None:
    report = judge(HealthFacts([GOOD], [ActorFacts(TOPIC, "head"), ActorFacts(TOPIC, "head", "audit")]))
    assert report.is_healthy
    assert report.findings == []
    assert (report.stores, report.running) == (1, 2)


def test_a_store_that_is_away_names_its_host_and_its_partitions() -> None:
    away = {"store_id": "s2", "host": "worker", "path": "/data", "partitions": 300}
    names = [f"{TOPIC}-partition-{number}" for number in range(300)]
    report = judge(HealthFacts([GOOD], away=[away], away_partitions={"s2": names}))
    assert not report.is_healthy
    texts = [finding.text() for finding in report.findings]
    assert (
        "error: store s2: last seen on worker (/data), is on no running node: its 300 partitions are not "
        "served: start that node again, or give the broker its data directory"
    ) in texts
    assert f"error: partition {TOPIC}-partition-0: is away with store s2" in texts
    assert len(texts) == 1 + SHOWN_PARTITIONS
    hosts = {finding.host for finding in report.findings}
    assert hosts == {""}, "the machine of that name, which may have another disk by now, cannot mend it"


def test_a_node_that_lost_its_store_is_an_error_and_one_that_has_none_yet_is_not() -> None:
    def refused(*, is_lost: bool) -> HealthFacts:
        node = {"node_id": "0a1b2c3d4e5f", "host": "worker", "reason": "it is on NFS", "is_lost": is_lost}
        return HealthFacts([GOOD], refused=[node])

    assert told(refused(is_lost=True)) == ["error: node 0a1b2c3d on worker: has no store: it is on NFS"]
    assert told(refused(is_lost=False)) == ["warning: node 0a1b2c3d on worker: has no store: it is on NFS"]
    assert judge(refused(is_lost=False)).is_healthy


def test_a_store_that_does_not_answer_and_one_with_little_room() -> None:
    silent = StoreFacts("s1", "head", "/data", "does not answer within 1 s")
    full = StoreFacts("s2", "worker", "/data", disk=DiskState(DiskLevel.LOW, "full"))
    filling = StoreFacts("s3", "worker", "/data", disk=DiskState(DiskLevel.WARNING, "81 % full"))
    report = judge(HealthFacts([silent, full, filling]))
    assert [(each.severity, each.subject) for each in report.findings] == [
        ("error", "s1"),
        ("error", "s2"),
        ("warning", "s3"),
    ]
    assert "/data: 81 % full: free space" in report.findings[2].text()
    assert report.stores == 2


def test_partitions_and_subscriptions() -> None:
    facts = HealthFacts(
        [GOOD],
        [
            ActorFacts(TOPIC, "head", problem="cannot be served: damaged"),
            ActorFacts(TOPIC, "head", "audit", problem="starts", is_starting=True),
            ActorFacts(TOPIC, "head", refusing="the disk is full", is_disk_low=True),
            ActorFacts(TOPIC, "head", refusing="over quota", damaged_ranges=2),
            ActorFacts(TOPIC, "head", "audit", troubles={"audit": "stands still: key 7"}),
        ],
    )
    assert told(facts) == [
        f"error: partition {TOPIC} on head: cannot be served: damaged",
        f"error: partition {TOPIC} on head: stores nothing: the disk is full",
        f"warning: partition {TOPIC} on head: stores nothing: over quota",
        f"warning: partition {TOPIC} on head: {DAMAGE}",
        f"warning: subscription {TOPIC} -> audit on head: starts",
        f"warning: subscription {TOPIC} -> audit on head: stands still: key 7",
    ]


def test_unknown_directories_and_logs_that_cannot_be_read() -> None:
    unknown = {"topic": TOPIC, "host": "head", "directory": "/data/p/7"}
    report = judge(HealthFacts([GOOD], unknown=[unknown], unread_logs=["persistent://pulsar/system/log"]))
    assert report.is_healthy
    assert [finding.kind for finding in report.warnings] == ["partition", "topic"]


def test_a_draining_node_is_a_warning() -> None:
    (finding,) = judge(
        HealthFacts([StoreFacts("s1", "head", "/data", draining="3 partitions have still to leave")])
    ).findings
    assert (finding.severity, finding.kind, finding.host) == ("warning", "node", "head")


def test_metrics_that_nobody_can_read_are_a_warning() -> None:
    facts = StoreFacts(
        "s1", "head", "/data", metrics_problem="its endpoint, port 7, does not answer: refused"
    )
    (text,) = told(HealthFacts([facts]))
    assert text.startswith(
        "warning: node s1 on head: nobody can read its metrics: its endpoint, port 7, does"
    )
    assert "dashboard_agent.log" in text


def test_a_store_that_does_not_ship_is_a_warning() -> None:
    facts = StoreFacts(
        "s1", "head", "/data", remote_problem="s3://b/p is away", remote_remark="it grows", remote_lag_s=40.2
    )
    report = judge(HealthFacts([facts]))
    assert report.is_healthy
    shipping, deleting = (finding.reason for finding in report.warnings)
    assert "not shipped to the object store: s3://b/p is away; the oldest of it is 40 s old" in shipping
    assert deleting == "it grows"


def test_a_clock_of_another_time_is_a_warning() -> None:
    ahead, behind, well = (StoreFacts(f"s{n}", "w", "/d", clock_ahead_ms=n) for n in (3000, -60_000, 2000))
    assert [each.reason for each in judge(HealthFacts([ahead, behind, well])).findings] == [
        "its clock is 60.0 s behind the controller's: delays and expiry go by it",
        "its clock is 3.0 s ahead of the controller's: delays and expiry go by it",
    ]


def test_a_report_survives_the_call() -> None:
    report = judge(HealthFacts([StoreFacts("s1", "head", "/data", "gone")], [ActorFacts(TOPIC, "head")]))
    assert HealthReport.of(report.described()) == report
    assert report.described()["healthy"] is False


def test_a_store_that_never_came_is_missed_if_somebody_said_how_many_there_are() -> None:
    assert told(HealthFacts([GOOD], expected_stores=1)) == []
    (missed,) = told(HealthFacts([GOOD], expected_stores=3))
    assert missed.startswith("error: broker: 1 of 3 expected stores are there: `pulsar-ray nodes`")
