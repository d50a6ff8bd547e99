"""`pulsar-ray brokers` and `nodes`: the nodes that store, and whether they work."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime

import click
from rich.table import Table

from pulsar_ray.admin.brokers import BrokerNode
from pulsar_ray.cli.console import cell, out, say, size, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.whole_help import WholeHelp


@click.group(cls=WholeHelp)
def brokers() -> None:
    """List the nodes that store, and check that they really produce and consume."""


@brokers.command(name="list")
@pass_target
def list_brokers(target: Target) -> None:
    """Show the hosts of the nodes that store, one a line.

    Those that are lost, or away with partitions, are named on standard error.
    """
    with target.asked() as admin:
        hosts, nodes = admin.brokers.list(), admin.brokers.nodes()
    # Nobody misses a store without partitions: its node was scaled down, or it was replaced.
    missing = [node for node in nodes if node.state == "lost" or (node.state == "away" and node.partitions)]
    for host in hosts:
        write_line(host)
    for node in missing:
        say(f"{node.host}: {_state(node)}, with {node.partitions} partitions")


@brokers.command()
@pass_target
def healthcheck(target: Target) -> None:
    """Publish a message on every node that stores, and read it back.

    The exit code is 1 if a node fails.
    """
    with target.asked() as admin:
        checked = admin.brokers.healthcheck()
    for health in checked:
        if health.problem:
            say(f"{health.host}: {health.problem}")
        else:
            times = f"published in {health.publish_ms:.1f} ms, read after {health.receive_ms:.1f} ms"
            write_line(f"{health.host}: ok, {times}")
    if not checked or any(health.problem for health in checked):
        raise click.exceptions.Exit(1)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="A list of nodes, with times in ms since 1970.")
@pass_target
def nodes(target: Target, as_json: bool) -> None:
    """List every node that was ever in, with its store, its partitions and its disk.

    A store is serving, draining (Ray will take its node away), silent (it does not answer), away (it is on no
    running node) or lost (its node is there, and its directory has no store); a node may be without store.
    """
    with target.asked() as admin:
        found = admin.brokers.nodes()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(node) for node in found], indent=2))
        return
    table = Table("host", "node", "store", "state", "partitions", "free", "of")
    for node in found:
        disk = ("" if each is None else size(each) for each in (node.free_bytes, node.total_bytes))
        names = (cell(node.host), node.node_id[:8], node.store_id[:8], cell(_state(node)))
        table.add_row(*names, str(node.partitions), *disk)
    out().print(table)
    for node in found:
        if node.reason:
            say(f"{node.host}: {node.reason}")


def _state(node: BrokerNode) -> str:
    if not node.since_ms:
        return node.state
    since = datetime.fromtimestamp(node.since_ms / 1000).astimezone()
    return f"{node.state} since {since:%Y-%m-%d %H:%M:%S}"
