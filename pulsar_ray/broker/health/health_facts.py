"""Decides from answers whether stores, partitions and subscriptions work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsar_ray.broker.health.disk_level import REMEDY, DiskLevel, DiskState
from pulsar_ray.broker.health.finding import ERROR, WARNING, Finding, HealthReport, worst_first

OK = DiskState(DiskLevel.OK)
CLOCKS_APART_MS = 2000
SHOWN_PARTITIONS = 100
"""So many partitions of a store that is away are named one by one."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One store that is there.

    `problem` is empty if its actor answered that all is well.
    """

    store_id: str
    host: str
    path: str
    problem: str = ""
    disk: DiskState = OK
    draining: str = ""
    """Why it is not empty yet, although its node is to go."""
    clock_ahead_ms: int = 0
    """By how much its clock differs from the controller's, beyond what the call took."""
    metrics_problem: str = ""
    """Why nobody can read the metrics of its node."""
    remote_problem: str = ""
    """Why it does not ship all that it should into the object store."""
    remote_remark: str = ""
    """A cost that grows there although all is shipped."""
    remote_lag_s: float = 0.0
    """How old the oldest byte is that is not shipped."""


@dataclass(frozen=True, slots=True)
class ActorFacts:
    """The answer of a partition or dispatcher that runs.

    `problem` says why it does not serve; `is_starting` if that will pass by itself. `refusing` is the reason
    for which a partition stores nothing, `troubles` are those of subscriptions by name.
    """

    topic: str
    host: str
    subscription: str = ""
    problem: str = ""
    is_starting: bool = False
    refusing: str = ""
    is_disk_low: bool = False
    damaged_ranges: int = 0
    troubles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HealthFacts:
    """All that the controller knows or was told.

    `away` are stores as `Membership.away` describes them, `away_partitions` names theirs by store id;
    `refused` and `unknown` are those of `Stores`, `unread_logs` the change logs that cannot be read.
    """

    stores: Sequence[StoreFacts]
    actors: Sequence[ActorFacts] = ()
    away: Sequence[Mapping[str, Any]] = ()
    away_partitions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    refused: Sequence[Mapping[str, Any]] = ()
    unknown: Sequence[Mapping[str, Any]] = ()
    unread_logs: Sequence[str] = ()
    expected_stores: int = 0
    """How many stores the cluster is to have; 0 if nobody said."""


def judge(facts: HealthFacts) -> HealthReport:
    """Return everything that is wrong, errors first."""
    findings = [
        *_of_missing(facts),
        *_of_away(facts),
        *_of_refused(facts),
        *(finding for store in facts.stores for finding in _of_store(store)),
        *(finding for actor in facts.actors for finding in _of_actor(actor)),
        *map(_of_unknown, facts.unknown),
        *map(_of_unread, facts.unread_logs),
    ]
    answering = sum(1 for store in facts.stores if not store.problem)
    return HealthReport(worst_first(findings), answering, len(facts.actors))


def _of_unknown(unknown: Mapping[str, Any]) -> Finding:
    reason = f"lies in {unknown['directory']}, and the catalog does not know it: it is not served"
    remedy = "see `pulsar-ray start --rebuild-catalog`"
    return Finding(WARNING, "partition", unknown["topic"], unknown["host"], reason, remedy)


def _of_unread(log: str) -> Finding:
    reason = "tenants, namespaces or policies are not known as long as it cannot be read"
    return Finding(WARNING, "topic", log, "", reason, "bring its node back")


def _of_missing(facts: HealthFacts) -> Iterator[Finding]:
    there = len(facts.stores)
    if there < facts.expected_stores:
        remedy = (
            "`pulsar-ray nodes` shows which are there, `pulsar-ray start --expect-stores` changes the number"
        )
        yield Finding(
            ERROR, "broker", "", "", f"{there} of {facts.expected_stores} expected stores are there", remedy
        )


def _of_away(facts: HealthFacts) -> Iterator[Finding]:
    for store in facts.away:
        remedy = "start that node again, or give the broker its data directory"
        place = f"{store['host']} ({store['path']})" if store["path"] else store["host"]
        unserved = f"its {store['partitions']} partitions are not served"
        reason = f"last seen on {place}, is on no running node: {unserved}"
        if takeover := store.get("takeover"):
            reason = f"{reason}; {takeover}"
        # Without a host: no node that runs could mend it, also not the one that took over that name.
        yield Finding(ERROR, "store", store["store_id"], "", reason, remedy)
        names = facts.away_partitions.get(store["store_id"], ())
        for name in names[:SHOWN_PARTITIONS]:
            yield Finding(ERROR, "partition", name, "", f"is away with store {store['store_id']}")


def _of_refused(facts: HealthFacts) -> Iterator[Finding]:
    for node in facts.refused:
        severity = ERROR if node["is_lost"] else WARNING
        yield Finding(severity, "node", node["node_id"][:8], node["host"], f"has no store: {node['reason']}")


def _of_store(store: StoreFacts) -> Iterator[Finding]:
    if store.problem:
        yield Finding(ERROR, "store", store.store_id, store.host, store.problem)
    if store.disk.level is not DiskLevel.OK:
        severity = ERROR if store.disk.level is DiskLevel.LOW else WARNING
        reason = f"{store.path}: {store.disk.reason}"
        yield Finding(severity, "store", store.store_id, store.host, reason, REMEDY)
    if abs(store.clock_ahead_ms) > CLOCKS_APART_MS:
        seconds = abs(store.clock_ahead_ms) / 1000
        way = "ahead of" if store.clock_ahead_ms > 0 else "behind"
        reason = f"its clock is {seconds:,.1f} s {way} the controller's: delays and expiry go by it"
        yield Finding(WARNING, "node", store.store_id, store.host, reason, "synchronize the nodes' clocks")
    if store.metrics_problem:
        reason = f"nobody can read its metrics: {store.metrics_problem}"
        remedy = "look into `dashboard_agent.log` in the logs of Ray's session there"
        yield Finding(WARNING, "node", store.store_id, store.host, reason, remedy)
    if store.remote_problem:
        lag = f"; the oldest of it is {store.remote_lag_s:,.0f} s old" if store.remote_lag_s else ""
        reason = f"what is stored is not shipped to the object store: {store.remote_problem}{lag}"
        remedy = "`pulsar-ray remote status` shows what waits; nothing is lost as long as its disk is there"
        yield Finding(WARNING, "store", store.store_id, store.host, reason, remedy)
    if store.remote_remark:
        yield Finding(WARNING, "store", store.store_id, store.host, store.remote_remark)
    if store.draining:
        reason = f"its node is drained: {store.draining}"
        remedy = "wait until they have left, before the node goes; `pulsar-ray nodes moves` shows them"
        yield Finding(WARNING, "node", store.store_id, store.host, reason, remedy)


def _of_actor(actor: ActorFacts) -> Iterator[Finding]:
    kind = "subscription" if actor.subscription else "partition"
    subject = f"{actor.topic} -> {actor.subscription}" if actor.subscription else actor.topic
    if actor.problem:
        severity = WARNING if actor.is_starting else ERROR
        yield Finding(severity, kind, subject, actor.host, actor.problem)
    if actor.refusing:
        # Its store says more of a full disk, once and not for each partition.
        severity = ERROR if actor.is_disk_low else WARNING
        yield Finding(severity, kind, subject, actor.host, f"stores nothing: {actor.refusing}")
    if actor.damaged_ranges:
        reason = f"{actor.damaged_ranges} ranges of its log are damaged and are passed over"
        remedy = "`pulsar-ray verify` shows which"
        yield Finding(WARNING, kind, subject, actor.host, reason, remedy)
    for name, trouble in actor.troubles.items():
        yield Finding(WARNING, "subscription", f"{actor.topic} -> {name}", actor.host, trouble)
