"""The commands of `pulsar-ray topics` that explain Key_Shared subscriptions."""

from __future__ import annotations

import json
from typing import Any

import click

from pulsar_ray.cli.administration.subscriptions import subscription_option
from pulsar_ray.cli.console import write_line
from pulsar_ray.cli.target import Target, pass_target


@click.command("why-blocked")
@click.argument("topic")
@subscription_option
@click.option("--json", "as_json", is_flag=True, help="Everything, with the ids of messages.")
@pass_target
def why_blocked(target: Target, topic: str, subscription: str, as_json: bool) -> None:
    """Say why messages of a subscription wait: which hash, at which consumer, since when."""
    found = target.ask(lambda topics: topics.why_blocked(topic, subscription))
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for name, told in found.get("partitions", {topic: found}).items():
        write_line(f"{name}: {told['reason']}")
        for one in told["hashes"]:
            waiting = f"{one['waitingMessages']:,} waiting for {one['blockedMs'] / 1000:.1f} s"
            write_line(f"  hash {one['hash']}, {waiting}: {one['reason']}")
        for one in told["consumers"]:
            write_line(
                f"  consumer {one['consumerName']}, {one['waitingMessages']:,} waiting: {one['reason']}"
            )


@click.command("key-owner")
@click.argument("topic")
@subscription_option
@click.argument("key")
@pass_target
def key_owner(target: Target, topic: str, subscription: str, key: str) -> None:
    """Show the hash of KEY and the consumer that owns it."""
    found: dict[str, Any] = target.ask(lambda topics: topics.key_owner(topic, subscription, key))
    for name, told in found.get("partitions", {topic: found}).items():
        drained = f", still drained by {', '.join(told['drainedBy'])}" if told["drainedBy"] else ""
        write_line(f"{name}: hash {told['hash']}, owner {told['owner'] or 'nobody'}{drained}")


COMMANDS: list[click.Command] = [why_blocked, key_owner]
