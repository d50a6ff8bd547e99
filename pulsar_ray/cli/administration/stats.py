"""`pulsar-ray stats`: counters of a topic, or of the broker."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table

from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.cli.console import cell, out, size, write_line
from pulsar_ray.cli.target import Target, pass_target


@click.command()
@click.argument("topic", required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything, with Pulsar's field names.")
@pass_target
def stats(target: Target, topic: str | None, as_json: bool) -> None:
    """Show what TOPIC holds and who uses it; without a TOPIC the whole broker.

    Counters start at 0 with the actor that counts, rates are of the last ten seconds; a backlog counts
    entries, of which a batch is one.
    """
    with target.asked() as admin:
        found = admin.stats() if topic is None else admin.topics.stats(topic)
        partitions = admin.topics.partitions() if topic is None else {}
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif topic is None:
        _show_broker(found, partitions)
    else:
        _show_topic(topic, found)


def _show_broker(found: dict[str, Any], partitions: dict[str, int]) -> None:
    stores = Table("node", "data directory", "free", "of", "state", title="stores")
    for store in found["stores"]:
        free, total = (size(store[field]) if field in store else "" for field in ("freeBytes", "totalBytes"))
        path, state = cell(store.get("path", "")), cell(store.get("error", "serves"))
        stores.add_row(cell(store.get("host", "")), path, free, total, state)
    actors = Table("actor", "node", "process", "state", title="running actors")
    for name, counters in sorted(found["actors"].items()):
        state = counters.get("refused") or counters.get("error") or "serves"
        actors.add_row(cell(name), cell(counters.get("host", "")), str(counters.get("pid", "")), cell(state))
    out().print(stores)
    out().print(actors)
    write_line(f"{len(partitions)} topics in public/default")


def _show_topic(topic: str, found: dict[str, Any]) -> None:
    parts = Table("", "node", "messages in", "/s", "bytes in", "stored", "producers", title=cell(topic))
    for name, partition in found.get("partitions", {}).items():
        place = name.rsplit("-", 1)[-1]
        shown = f"{place} (away)" if partition.get("away") else place
        parts.add_row(shown, cell(partition.get("host", "")), *_traffic(partition))
    parts.add_row("all" if "partitions" in found else "", cell(found.get("host", "")), *_traffic(found))
    out().print(parts)
    for line in _publishing(found):
        write_line(line)
    if found.get("msgChunkPublished"):
        write_line(f"messages in chunks: {found['chunkedMessageRate']:,.1f} chunks stored per second")
    if "refused" in found and "partitions" not in found:
        # Subscriptions, too, are not known; an empty table would say that there are none.
        _show_problems(topic, found)
        return
    subscriptions = Table("subscription", "type", "backlog", "unacked", "messages out", "/s", "consumers")
    for name, one in sorted(found["subscriptions"].items()):
        subscriptions.add_row(
            cell(name) if one["isDurable"] else f"{cell(name)} (not durable)",
            one["type"],
            f"{one['msgBacklog']:,}",
            f"{one['unackedMessages']:,}",
            f"{one['msgOutCounter']:,}",
            f"{one['msgRateOut']:,.1f}",
            cell(", ".join(sorted({consumer["consumerName"] for consumer in one["consumers"]}))),
        )
    out().print(subscriptions)
    _show_problems(topic, found)


def _show_problems(topic: str, found: dict[str, Any]) -> None:
    for name, one in sorted(found["subscriptions"].items()):
        if one["problem"]:
            click.secho(one_line(f"{name}: {one['problem']}"), fg="red", err=True)
    for name, partition in found.get("partitions", {topic: found}).items():
        for problem in [partition.get("refused"), *partition.get("corruptions", ())]:
            if problem:
                click.secho(one_line(f"{name}: {problem}"), fg="red", err=True)


def _publishing(found: dict[str, Any]) -> list[str]:
    """Say which schema producers use, and what is not as usual for them."""
    told = []
    if found.get("schemaType"):
        told.append(f"schema: {found['schemaType']}, version {found['schemaVersion']}")
    if found.get("deduplicationStatus", "Disabled") != "Disabled":
        told.append(f"deduplication: {found['deduplicationStatus']}")
    if found.get("topicEpoch", -1) >= 0:
        told.append(f"topic epoch: {found['topicEpoch']}")
    if found.get("waitingPublishers", 0):
        told.append(f"producers that wait to have the topic for themselves: {found['waitingPublishers']}")
    if found.get("backlogQuotaExceeded"):
        told.append(f"nothing is stored: {found['backlogQuotaExceeded']}")
    return told


def _traffic(counters: dict[str, Any]) -> tuple[str, ...]:
    if "refused" in counters and "metadata" not in counters:
        return ("?",) * 5
    return (
        f"{counters['msgInCounter']:,}",
        f"{counters['msgRateIn']:,.1f}",
        size(counters["bytesInCounter"]),
        size(counters["storageSize"]),
        str(len(counters["publishers"])),
    )
