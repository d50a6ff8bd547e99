"""The commands of `pulsar-ray topics` that concern subscriptions, with pulsar-admin's names."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from pulsar_ray.cli.console import write_line, write_out
from pulsar_ray.cli.parameters import FiniteRange, duration
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.client.received.message_json import message_json
from pulsar_ray.model.message_id import MessageId

_subscription = click.option("-s", "--subscription", required=True, help="The subscription's name.")
COMMANDS: list[click.Command] = []


def _of_topic(function: Callable[..., Any]) -> click.Command:
    """Declare a command of a topic."""
    named = click.argument("topic")(pass_target(function))
    command = click.command(function.__name__.replace("_", "-"))(named)
    COMMANDS.append(command)
    return command


def _of_subscription(function: Callable[..., Any]) -> click.Command:
    """Declare a command of a topic's subscription."""
    return _of_topic(_subscription(function))


def _id(_: click.Context, __: click.Parameter, text: str | None) -> MessageId | str | None:
    if text is None or text in ("earliest", "latest"):
        return text
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not all(re.fullmatch(r"-?\d+", part) for part in parts):
        raise click.BadParameter(f'{text!r}: give "earliest", "latest" or LEDGER:ENTRY[:PARTITION]')
    ledger_id, entry_id, *partition = (int(part) for part in parts)
    return MessageId(partition[0] if partition else -1, ledger_id, entry_id)


@_of_topic
def subscriptions(target: Target, topic: str) -> None:
    """List the subscriptions of TOPIC, one per line."""
    names = target.ask(lambda topics: topics.subscriptions(topic))
    for name in names:
        write_line(name)


@_of_subscription
@click.option(
    "-m", "--message-id", "position", default="earliest", show_default=True, callback=_id,
    help="earliest, latest, or LEDGER:ENTRY of the first message it gets.",
)  # fmt: skip
def create_subscription(target: Target, topic: str, subscription: str, position: MessageId | str) -> None:
    """Create a subscription of TOPIC; from now on the topic keeps messages for it."""
    target.ask(lambda topics: topics.create_subscription(topic, subscription, position))
    write_line(f"created {subscription}")


@_of_subscription
@click.option("-p", "--property", "pairs", multiple=True, metavar="NAME=VALUE", help="One of them.")
@click.option("--clear", is_flag=True, help="Leave the subscription without any.")
def update_subscription_properties(
    target: Target, topic: str, subscription: str, pairs: tuple[str, ...], clear: bool
) -> None:
    """Replace the properties of a subscription."""
    if bool(pairs) == clear or not all("=" in pair for pair in pairs):
        raise click.UsageError("give --property NAME=VALUE, as often as needed, or --clear")
    properties = dict(pair.split("=", 1) for pair in pairs)
    target.ask(lambda topics: topics.update_subscription_properties(topic, subscription, properties))
    write_line(f"{subscription} has {len(properties)} properties")


@_of_subscription
@click.argument("value", type=click.Choice(("true", "false", "as-topic")))
def set_delayed_delivery_strict(target: Target, topic: str, subscription: str, value: str) -> None:
    """Say whether delayed messages of a subscription are never early.

    false: they may come up to a tick early. as-topic: the topic's policy delayed_delivery decides.
    """
    strict = {"true": True, "false": False}.get(value)
    target.ask(lambda topics: topics.set_delayed_delivery_strict(topic, subscription, strict))
    write_line(f"set for {subscription}: {value}")


@_of_subscription
@click.option("-f", "--force", is_flag=True, help="Also while consumers are connected.")
def unsubscribe(target: Target, topic: str, subscription: str, force: bool) -> None:
    """Delete a subscription of TOPIC with its backlog."""
    target.ask(lambda topics: topics.unsubscribe(topic, subscription, force))
    write_line(f"deleted {subscription}")


@_of_subscription
@click.option("-n", "--count", type=click.IntRange(min=1), required=True, help="How many entries.")
def skip(target: Target, topic: str, subscription: str, count: int) -> None:
    """Acknowledge the first COUNT entries of the backlog; a batch is one entry."""
    skipped = target.ask(lambda topics: topics.skip(topic, subscription, count))
    write_line(f"skipped {skipped:,} entries")


@_of_subscription
def clear_backlog(target: Target, topic: str, subscription: str) -> None:
    """Acknowledge everything that is stored by now."""
    skipped = target.ask(lambda topics: topics.skip_all(topic, subscription))
    write_line(f"skipped {skipped:,} entries")


@_of_subscription
@click.option("-t", "--time", "ago", callback=duration, help="So long ago: 30s, 90m, 3h, 2d, 1w.")
@click.option(
    "-m", "--message-id", "position", callback=_id,
    help="earliest, latest, or LEDGER:ENTRY[:PARTITION] of the first message it then gets.",
)  # fmt: skip
def reset_cursor(
    target: Target, topic: str, subscription: str, ago: timedelta | None, position: MessageId | str | None
) -> None:
    """Have a subscription start over at a time or at a message."""
    if (ago is None) == (position is None):
        raise click.UsageError("give either --time or --message-id")
    to = max(0, int((time.time() - ago.total_seconds()) * 1000)) if ago is not None else position
    assert to is not None
    target.ask(lambda topics: topics.reset_cursor(topic, subscription, to))
    write_line(f"reset {subscription}")


@_of_subscription
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many messages."
)
def peek_messages(target: Target, topic: str, subscription: str, count: int) -> None:
    """Show the first messages of the backlog as JSON, one a line; nothing moves."""
    messages = target.ask(lambda topics: topics.peek_messages(topic, subscription, count))
    write_out(b"".join(message_json(message) for message in messages))


@_of_topic
@click.option("--to", metavar="TOPIC", help="Where to.  [default: the topic that each message came from]")
@click.option("-s", "--subscription", help="Whose messages.  [default: the only subscription]")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    help="At most so many of those that have a target.  [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Count, and move nothing.")
def redrive(
    target: Target, topic: str, to: str | None, subscription: str | None, limit: int | None, dry_run: bool
) -> None:
    """Send messages of the dead letter topic TOPIC back to where they came from.

    Each is acknowledged once its copy is durable. Messages that wait for their time or are held by consumers
    are counted by a dry run, and do not move. If a target fails, those for the others go first.

    \b
    Example:
      pulsar-ray topics peek-messages orders-billing-DLQ -s support -n 10
      pulsar-ray topics redrive orders-billing-DLQ --limit 100 --dry-run
    """
    doing = "counting messages" if dry_run else "sending messages back"
    with target.admin() as admin, progress(doing, limit, Unit.ITEMS) as shown:
        moved = admin.topics.redrive(
            topic, to, subscription=subscription, limit=limit, dry_run=dry_run, progress=shown.advance
        )
    if not moved:
        write_line("nothing waits there")
    for name, count in sorted(moved.items()):
        if name:
            write_line(f"{'would send' if dry_run else 'sent'} {count:,} messages to {name}")
        else:
            write_line(
                f"left {count:,} messages that do not say where they came from, or say it wrongly: give --to"
            )


@_of_subscription
@click.option("-t", "--expire-time", type=FiniteRange(min=0), required=True, help="In seconds.")
def expire_messages(target: Target, topic: str, subscription: str, expire_time: float) -> None:
    """Acknowledge what was published longer than EXPIRE-TIME ago."""
    expired = target.ask(lambda topics: topics.expire_messages(topic, subscription, expire_time))
    write_line(f"expired {expired:,} entries")


@_of_topic
@click.option("-t", "--expire-time", type=FiniteRange(min=0), required=True, help="In seconds.")
def expire_messages_all_subscriptions(target: Target, topic: str, expire_time: float) -> None:
    """Acknowledge, for every subscription, what was published longer than EXPIRE-TIME ago."""
    expired = target.ask(lambda topics: topics.expire_messages_all_subscriptions(topic, expire_time))
    for name, entries in sorted(expired.items()):
        write_line(f"{name}: expired {entries:,} entries")


@_of_topic
def last_message_id(target: Target, topic: str) -> None:
    """Show the id of the newest message of TOPIC."""
    last = target.ask(lambda topics: topics.get_last_message_id(topic))
    write_line(f"{last.ledger_id()}:{last.entry_id()}:{last.partition()}:{last.batch_index()}")


@_of_subscription
@click.option("--json", "as_json", is_flag=True, help="Everything, with the ids of messages.")
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


@_of_subscription
@click.argument("key")
def key_owner(target: Target, topic: str, subscription: str, key: str) -> None:
    """Show the hash of KEY and the consumer that owns it."""
    found: dict[str, Any] = target.ask(lambda topics: topics.key_owner(topic, subscription, key))
    for name, told in found.get("partitions", {topic: found}).items():
        drained = f", still drained by {', '.join(told['drainedBy'])}" if told["drainedBy"] else ""
        write_line(f"{name}: hash {told['hash']}, owner {told['owner'] or 'nobody'}{drained}")
