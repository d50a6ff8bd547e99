"""`pulsar-ray stores`: what to do about a store that is lost for good."""

from __future__ import annotations

import click

from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.whole_help import WholeHelp
from pulsar_ray.errors import NotAllowedError


@click.group(cls=WholeHelp)
def stores() -> None:
    """Give stores up whose disks are lost."""


@stores.command()
@click.argument("store")
@click.option("--accept-loss", is_flag=True, help="Do not ask: what is named is lost.")
@pass_target
def forget(target: Target, store: str, accept_loss: bool) -> None:
    """Give up a lost STORE, and begin its partitions anew on other nodes.

    STORE is its id, or how that begins, as `pulsar-ray nodes` shows it. The command names first what is lost
    with the disk and begins empty. The partitions that are left keep their messages, and all subscriptions
    stay.
    """
    with target.asked() as admin:
        known = {node.store_id for node in admin.brokers.nodes() if node.store_id}
        found = [each for each in sorted(known) if each.startswith(store)]
        if len(found) > 1:
            raise NotAllowedError(f"{store} begins the ids of {', '.join(found)}: give more of it")
        loss = admin.stores.losses(found[0] if found else store)
        for partition in loss.partitions:
            write_line(partition)
        say(f"{len(loss.partitions)} partitions of {loss.host}, {loss.path}, named above, begin empty.")
        if not accept_loss:
            click.confirm("Their messages are lost for good. Go on?", abort=True, err=True)
        admin.stores.forget(loss.store_id, accept_loss=True)
    say(f"store {loss.store_id} is forgotten; its partitions are served by other nodes")
