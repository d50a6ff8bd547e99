"""`pulsar-ray brokers`, `nodes` and `stores`: the nodes that store, and whether they work."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime

import click
from rich.table import Table

from pulsar_ray.admin.brokers import BrokerNode
from pulsar_ray.cli.administration.moving import moving, tell_ends
from pulsar_ray.cli.console import cell, out, say, size, write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.errors import NotAllowedError


@click.group(cls=BrokerCommands)
def brokers() -> None:
    """List the nodes that store, and check that they really produce and consume."""


@brokers.of(name="list")
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


@brokers.of()
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


@click.group(cls=BrokerCommands, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="A list of nodes, with times in ms since 1970.")
@click.pass_context
def nodes(context: click.Context, as_json: bool) -> None:
    """List every node that was ever in, with its store, its partitions and its disk.

    A store is serving, draining (everything moves away, since Ray or somebody drains its node), drained
    (nothing
    is left, and the node may go), silent (it does not answer), away (it is on no running node) or lost (its
    node is there, and its directory has no store); a node may be without store.
    """
    if context.invoked_subcommand is None:
        _show_nodes(context.ensure_object(Target), as_json)


@nodes.of("node")
@click.option("--no-wait", is_flag=True, help="Return at once; the broker goes on.")
def drain(target: Target, node: str, no_wait: bool) -> None:
    """Move everything away from NODE, which may go then.

    NODE is a host, or how the id of a store or of a node begins. Nothing new is placed there from now on,
    until
    `nodes undrain`. The broker goes on if this command is stopped, and tries again what failed.
    """
    with target.admin() as admin:
        total = sum(each.partitions for each in admin.brokers.nodes() if node in (each.host, each.store_id))
        with progress(f"draining {node}", total or None, Unit.ITEMS) as line:
            admin.brokers.drain(node, wait=not no_wait, shown=lambda left: line.reached(max(0, total - left)))
    write_line(f"{node} is being drained" if no_wait else f"{node} is drained: nothing lies there any more")


@nodes.of("node")
def undrain(target: Target, node: str) -> None:
    """Let NODE take partitions again."""
    with target.asked() as admin:
        admin.brokers.undrain(node)
    write_line(f"{node} takes partitions")


@nodes.of()
def balance(target: Target) -> None:
    """Move partitions until all nodes have about as many, for instance to a new one."""
    with target.admin() as admin, moving("balancing") as shown:
        ended, found = admin.brokers.balance(shown=shown), admin.brokers.nodes()
    tell_ends(ended, found)
    if not ended:
        write_line("all nodes have about as many partitions")


@nodes.of()
@click.option("--json", "as_json", is_flag=True, help="A list of moves.")
def moves(target: Target, as_json: bool) -> None:
    """Show the moves of partitions that are under way, and the last ones."""
    with target.asked() as admin:
        found, hosts = admin.brokers.moves(), {each.store_id: each.host for each in admin.brokers.nodes()}
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
        return
    table = Table("partition", "from", "to", "state", "of", "left")
    for each in found:
        places = (cell(hosts.get(place, place)) for place in (each.source, each.target))
        sizes = ("" if each.is_over else size(each.rest_bytes),)
        table.add_row(cell(each.partition), *places, cell(each.state), size(each.total_bytes), *sizes)
    out().print(table)
    for each in found:
        if each.reason:
            say(f"{each.partition}: {each.reason}")


def _show_nodes(target: Target, as_json: bool) -> None:
    with target.asked() as admin:
        found = admin.brokers.nodes()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(node) for node in found], indent=2))
        return
    is_shipped = any(node.remote_lag_seconds is not None for node in found)
    shipped = ("lag", "to ship") if is_shipped else ()
    table = Table("host", "node", "store", "state", "partitions", "free", "of", *shipped)
    for node in found:
        disk = ("" if each is None else size(each) for each in (node.free_bytes, node.total_bytes))
        names = (cell(node.host), node.node_id[:8], node.store_id[:8], cell(_state(node)))
        table.add_row(*names, str(node.partitions), *disk, *(_lag(node) if is_shipped else ()))
    out().print(table)
    for node in found:
        if node.reason:
            say(f"{node.host}: {node.reason}")


def _lag(node: BrokerNode) -> tuple[str, str]:
    if node.remote_lag_seconds is None or node.remote_waiting_bytes is None:
        return "", ""
    return f"{node.remote_lag_seconds:.1f} s", size(node.remote_waiting_bytes)


def _state(node: BrokerNode) -> str:
    if not node.since_ms:
        return node.state
    since = datetime.fromtimestamp(node.since_ms / 1000).astimezone()
    return f"{node.state} since {since:%Y-%m-%d %H:%M:%S}"


@click.group(cls=BrokerCommands)
def stores() -> None:
    """Give stores up whose disks are lost."""


@stores.of("store")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Do not ask: what is named is lost, and so are partitions whose objects are missing or damaged.",
)
def forget(target: Target, store: str, accept_loss: bool) -> None:
    """Give up a lost STORE, and begin its partitions anew on other nodes.

    STORE is its id, or how that begins, as `pulsar-ray nodes` shows it. The command names first what is lost
    with the disk and begins empty. So do partitions whose objects somebody has deleted or damaged in the
    object store; but a journal that lacks one in the middle is not ended. The partitions that are left keep
    their messages, and all subscriptions stay.
    """
    with target.asked() as admin:
        known = {node.store_id for node in admin.brokers.nodes() if node.store_id}
        found = [each for each in sorted(known) if each.startswith(store)]
        if len(found) > 1:
            raise NotAllowedError(f"{store} begins the ids of {', '.join(found)}: give more of it")
        loss = admin.stores.losses(found[0] if found else store)
        empty = [name for name in loss.partitions if name not in loss.shipped]
        for partition in empty:
            write_line(partition)
        say(f"{len(empty)} partitions of {loss.host}, {loss.path}, named above, begin empty.")
        if loss.shipped:
            say(f"{len(loss.shipped)} more come back from the object store, as of what was shipped.")
        if not accept_loss:
            lost = "Their messages are" if empty else "What was not shipped is"
            click.confirm(f"{lost} lost for good. Go on?", abort=True, err=True)
        admin.stores.forget(loss.store_id, accept_loss=True)
    say(f"store {loss.store_id} is forgotten; its partitions are served by other nodes")
